import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.*;
import java.io.IOException;
import java.nio.file.*;
import java.util.*;
import java.util.stream.*;

/** The manifest of a training kit. A step reads the inputs, and then the tensors of the state, in this order. */
record Kit(@JsonProperty("batch_size") int rows, List<Step> steps, List<Binding> inputs, State state) {
    record Step(String file, @JsonProperty("batch_size") Integer rows) {
        Step {
            if (!Path.of(file).equals(Path.of(file).getFileName())) throw new IllegalArgumentException(file);
        }
    }

    record State(List<Binding> tensors) {}

    /** What a step reads; a size in the shape that is a name stands for any number. */
    record Binding(String name, String dtype, List<Object> shape, Long low, Long high, Long ignored) {
        Binding { Stream.of(name, dtype, shape).forEach(Objects::requireNonNull); }

        void check(Tensor tensor) throws BadInput {
            if (tensor == null) throw new BadInput("The data lack the input '%s'.", name);
            if (!tensor.dtype().name.equals(dtype))
                throw new BadInput("Input '%s' is %s, where %s is expected.", name, tensor.dtype().name, dtype);
            long[] sizes = tensor.shape();
            if (sizes.length != shape.size() || IntStream.range(1, sizes.length).anyMatch(
                    axis -> shape.get(axis) instanceof Number size && size.longValue() != sizes[axis]))
                throw new BadInput("Input '%s' has the shape %s, where %s is expected.", name,
                    Arrays.toString(sizes), shape);
            if (low == null || high == null) return;
            var values = tensor.wholeNumbers().filter(n -> ignored == null || n != ignored).summaryStatistics();
            if (values.getCount() > 0 && (values.getMin() < low || values.getMax() > high))
                throw new BadInput("Input '%s' has values from %s to %s, where %s to %s are expected%s.", name,
                    values.getMin(), values.getMax(), low, high,
                    ignored == null ? "" : ", or " + ignored + " for what does not count");
        }
    }

    static Kit read(Path path) throws BadInput {
        ObjectMapper mapper = new ObjectMapper().disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES);
        try {
            JsonNode json = mapper.readTree(Files.readAllBytes(path));
            int version = json.required("version").asInt();
            if (!json.required("format").asText().equals("ortpartial.kit") || version < 1) throw new IOException();
            if (version > 1)
                throw new BadInput("kit.json is of version %s, and this runner reads version 1: take the runner that "
                    + "was exported with the kit.", version);
            Kit kit = mapper.treeToValue(json, Kit.class);
            for (List<?> list : List.of(kit.steps, kit.inputs, kit.state.tensors))
                if (kit.rows < 1 || list.isEmpty() || list.contains(null)) throw new IOException();
            return kit;
        } catch (IOException | RuntimeException e) {
            throw new BadInput("kit.json is no manifest of a training kit.");
        }
    }

    /** The file of the step for batches of so many rows. */
    String findStep(int batch) throws BadInput {
        for (Step step : steps)
            if (step.rows == null || step.rows == batch) return step.file;
        throw new BadInput("The kit has steps for batches of %s rows, not of %s.",
            steps.stream().map(step -> step.rows.toString()).collect(Collectors.joining(" or ")), batch);
    }

    TensorFile readState(Path path) throws BadInput {
        String name = path.getFileName().toString();
        try {
            TensorFile file = new TensorFile(path);
            if (!file.isWhole()) throw new IOException();
            for (Binding binding : state.tensors) {
                Tensor tensor = file.tensors.get(binding.name);
                if (tensor == null || !tensor.dtype().name.equals(binding.dtype)
                        || !Arrays.toString(tensor.shape()).equals(binding.shape.toString()))
                    throw new BadInput("%s is the state of another kit: its tensors are not those of kit.json.", name);
            }
            return file;
        } catch (IOException | RuntimeException e) {
            throw new BadInput("%s is damaged: restore a copy of it, or export the kit again.", name);
        }
    }

    /** Reads data for batches of so many rows: a tensor for each input. */
    List<Tensor> readData(Path path, int batch) throws BadInput {
        Map<String, Tensor> data;
        try {
            data = new TensorFile(path).tensors;
        } catch (IOException | RuntimeException e) {
            throw new BadInput("%s is no safetensors file, or a damaged one.", path.getFileName());
        }
        for (Binding input : inputs) input.check(data.get(input.name));
        List<Tensor> tensors = inputs.stream().map(input -> data.get(input.name)).toList();
        long count = tensors.get(0).shape()[0];
        if (tensors.stream().anyMatch(t -> t.shape()[0] != count))
            throw new BadInput("The inputs have different numbers of rows: %s.", inputs.stream().map(
                i -> "'" + i.name + "' has " + data.get(i.name).shape()[0]).collect(Collectors.joining(", ")));
        if (count < batch) throw new BadInput("The data have %s rows, fewer than a batch of %s.", count, batch);
        return tensors;
    }
}
