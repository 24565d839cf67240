import ai.onnxruntime.*;
import java.io.IOException;
import java.nio.file.*;
import java.util.*;

/** The inference model of a kit, with the weights that a state has. */
class Model implements AutoCloseable {
    private final Kit kit;
    private final byte[] bytes;
    private final OrtSession session;

    /** Opens the model of a kit with the weights that the kit has now. */
    static Model open(Path folder) throws BadInput {
        for (String name : List.of("kit.json", "state.safetensors", "model.onnx"))
            if (!Files.isReadable(folder.resolve(name)))
                throw new BadInput("%s cannot be read.", folder.resolve(name));
        Kit kit = Kit.read(folder.resolve("kit.json"));
        return new Model(folder, kit, kit.readState(folder.resolve("state.safetensors")));
    }

    Model(Path folder, Kit kit, TensorFile state) throws BadInput {
        this.kit = kit;
        try {
            bytes = Files.readAllBytes(folder.resolve("model.onnx"));
            for (var weight : kit.weights().entrySet()) {
                var numbers = state.tensors.get(weight.getKey()).bytes();
                Tensor.part(numbers, 0, numbers.capacity()).get(bytes, weight.getValue(), numbers.capacity());
            }
        } catch (IOException | RuntimeException e) {
            throw new BadInput("model.onnx is not that of kit.json: export the kit again.");
        }
        try {
            session = Train.ORT.createSession(bytes);
        } catch (OrtException e) {
            throw refuse(e);
        }
    }

    /** The outputs for rows, by name. */
    Map<String, Tensor> predict(Map<String, Tensor> rows) throws BadInput {
        List<String> names = List.copyOf(session.getInputNames());
        List<Tensor> tensors = kit.takeInputs(rows, names);
        Map<String, Tensor> outputs = new LinkedHashMap<>();
        Map<String, OnnxTensor> feeds = new HashMap<>();
        try {
            for (String name : names) feeds.put(name, tensors.get(feeds.size()).copy().share(Train.ORT));
            try (OrtSession.Result results = session.run(feeds)) {
                for (var output : results)
                    outputs.put(output.getKey(), Tensor.read(output.getKey(), output.getValue()));
            }
        } catch (OrtException e) {
            throw refuse(e);
        } finally {
            feeds.values().forEach(OnnxTensor::close);
        }
        return outputs;
    }

    /** Saves the model, which any onnxruntime runs. */
    void save(Path path) throws BadInput {
        TensorFile.replace(path, bytes);
    }

    @Override
    public void close() {
        try {
            session.close();
        } catch (OrtException e) {
            throw new IllegalStateException(e);
        }
    }

    private static BadInput refuse(OrtException e) {
        return new BadInput("onnxruntime %s cannot run model.onnx: %s", Train.ORT.getVersion(),
            e.getMessage().split("\n")[0]);
    }
}
