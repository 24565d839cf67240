import ai.onnxruntime.*;
import java.nio.file.*;
import java.util.*;
import java.util.stream.*;

/** Trains a training kit: java -cp 'lib/*:.' Train KIT DATA [STEPS=100] [BATCH=batch_size of kit.json] [SEED=0] */
class Train {
    static final OrtEnvironment ORT = OrtEnvironment.getEnvironment(OrtLoggingLevel.ORT_LOGGING_LEVEL_FATAL, "kit");

    public static void main(String[] args) {
        try {
            Path kit = Path.of(args[0]), data = Path.of(args[1]);
            boolean areNumbers = Stream.of(args).skip(2).allMatch(number -> number.matches("[0-9]+"));
            if (!areNumbers || args.length > 5 || (args.length > 3 && args[3].matches("0+")))
                throw new NumberFormatException();
            int steps = args.length > 2 ? Integer.parseInt(args[2]) : 100;
            int batch = args.length > 3 ? Integer.parseInt(args[3]) : 0; // 0: that of the kit
            int seed = args.length > 4 ? Integer.parseUnsignedInt(args[4]) : 0;
            train(kit, data, steps, batch, seed);
        } catch (BadInput e) {
            System.err.println(e.getMessage());
            System.exit(1);
        } catch (IndexOutOfBoundsException | NumberFormatException e) {
            System.err.println("Usage: Train KIT DATA [STEPS=100] [BATCH=batch_size of kit.json] [SEED=0]");
            System.exit(1);
        }
    }

    static void train(Path folder, Path dataPath, int steps, int rows, int seed) throws BadInput {
        Path manifestPath = folder.resolve("kit.json"), statePath = folder.resolve("state.safetensors");
        for (Path path : List.of(manifestPath, statePath, dataPath))
            if (!Files.isReadable(path)) throw new BadInput("%s cannot be read.", path);
        Kit kit = Kit.read(manifestPath);
        TensorFile state = kit.readState(statePath);
        int batch = rows > 0 ? rows : kit.rows();
        String step = kit.findStep(batch);
        try (OrtSession session = ORT.createSession(folder.resolve(step).toString())) {
            List<String> names = kit.inputs().stream().map(Binding::name).collect(Collectors.toList());
            List<Tensor> data = kit.takeInputs(TensorFile.readData(dataPath), names);
            if (data.get(0).shape()[0] < batch)
                throw new BadInput("The data have %s rows, fewer than a batch of %s.", data.get(0).shape()[0], batch);
            takeSteps(session, kit, state, data, batch, steps, seed);
        } catch (OrtException e) {
            throw new BadInput("onnxruntime %s cannot run %s: %s", ORT.getVersion(), step,
                e.getMessage().split("\n")[0]);
        }
        state.save(statePath, state.steps() + steps);
    }

    /** Takes steps, and writes the last state over the first one, in memory. */
    static void takeSteps(OrtSession session, Kit kit, TensorFile state, List<Tensor> data, int batch,
                          int steps, int seed) throws BadInput, OrtException {
        List<Tensor> weights = kit.state().stream().map(t -> state.tensors.get(t.name())).collect(Collectors.toList());
        List<Tensor> batches = new ArrayList<>(); // their memory is written anew for each step
        for (Tensor tensor : data) batches.add(tensor.allocate(batch));
        List<String> names = Stream.of(kit.inputs(), kit.state()).flatMap(List::stream).map(Binding::name)
            .collect(Collectors.toList());
        if (!names.equals(List.copyOf(session.getInputNames())))
            throw new BadInput("%s is damaged: its inputs and outputs are not those of kit.json.", kit.findStep(batch));
        Map<String, OnnxTensor> feeds = new HashMap<>();
        for (Tensor tensor : batches) feeds.put(names.get(feeds.size()), tensor.share(ORT));
        for (Tensor tensor : weights) feeds.put(names.get(feeds.size()), tensor.copy().share(ORT));

        int count = (int) data.get(0).shape()[0], stepsOfEpoch = count / batch;
        int[] order = null;
        for (long k = state.steps(), end = k + steps; k < end; k++) {
            int place = (int) (k % stepsOfEpoch);
            if (place == 0 || order == null) order = Rows.drawOrder(seed, (int) (k / stepsOfEpoch), count);
            for (int i = 0; i < data.size(); i++) data.get(i).take(order, place * batch, batches.get(i));
            OrtSession.Result results = session.run(feeds);
            Number loss = (Number) results.get(0).getValue();
            if (!Double.isFinite(loss.doubleValue()))
                throw new BadInput("The loss of step %s is not finite: the kit needs a smaller step size, or the "
                    + "data hold numbers that are none.", k + 1);
            if ((k + 1) % 10 == 0 || k + 1 == end) System.out.println("step " + (k + 1) + ": loss " + loss);
            int outputs = results.size() - weights.size();
            for (int i = 0; i < outputs; i++) results.get(i).close();
            for (int i = 0; i < weights.size(); i++) // what was the state is freed
                feeds.put(names.get(data.size() + i), (OnnxTensor) results.get(outputs + i)).close();
        }
        for (int i = 0; i < weights.size(); i++)
            weights.get(i).bytes().put(feeds.get(names.get(data.size() + i)).getByteBuffer());
    }
}
