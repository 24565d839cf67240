import com.fasterxml.jackson.databind.*;
import java.io.IOException;
import java.nio.file.*;
import java.util.*;
import java.util.stream.*;

/** The manifest of a training kit. A step reads the inputs, and then the tensors of the state, in this order. */
record Kit(int rows, List<Step> steps, List<Binding> inputs, List<Binding> state, Map<String, Integer> weights) {
    /** A graph, for batches of so many rows, or of any number where it is null. */
    record Step(String file, Integer rows) {
        static Step parse(JsonNode json) {
            Path file = Path.of(text(json.required("file")));
            if (!file.equals(file.getFileName())) throw new IllegalArgumentException();
            JsonNode rows = json.required("batch_size");
            return new Step(file.toString(), rows.isNull() ? null : Integer.valueOf(whole(rows, 1)));
        }
    }

    // Read by hand, since Android has no names of records for Jackson to find before its version 14.
    static Kit read(Path path) throws BadInput {
        try {
            JsonNode json = new ObjectMapper().readTree(Files.readAllBytes(path));
            int version = json.required("version").asInt();
            if (!text(json.required("format")).equals("ortpartial.kit") || version < 1) throw new IOException();
            if (version > 1)
                throw new BadInput("kit.json is of version %s, and this runner reads version 1: take the runner that "
                    + "was exported with the kit.", version);
            Map<String, Integer> weights = new HashMap<>();
            for (JsonNode weight : json.required("model").required("weights"))
                weights.put(text(weight.required("name")), whole(weight.required("offset"), 0));
            return new Kit(whole(json.required("batch_size"), 1), parse(json.required("steps"), Step::parse),
                parse(json.required("inputs"), Binding::parse),
                parse(json.required("state").required("tensors"), Binding::parse), weights);
        } catch (IOException | RuntimeException e) {
            throw new BadInput("kit.json is no manifest of a training kit.");
        }
    }

    private static <T> List<T> parse(JsonNode list, java.util.function.Function<JsonNode, T> parser) {
        if (!list.isArray() || list.isEmpty()) throw new IllegalArgumentException();
        return StreamSupport.stream(list.spliterator(), false).map(parser).collect(Collectors.toList());
    }

    static String text(JsonNode json) {
        if (!json.isTextual()) throw new IllegalArgumentException();
        return json.asText();
    }

    static int whole(JsonNode json, int least) {
        if (!json.canConvertToInt() || !json.isIntegralNumber() || json.asInt() < least)
            throw new IllegalArgumentException();
        return json.asInt();
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
            for (Binding binding : state) {
                Tensor tensor = file.tensors.get(binding.name());
                if (tensor == null || !tensor.dtype().name.equals(binding.dtype())
                        || !Arrays.toString(tensor.shape()).equals(binding.shape().toString()))
                    throw new BadInput("%s is the state of another kit: its tensors are not those of kit.json.", name);
            }
            return file;
        } catch (IOException | RuntimeException e) {
            throw new BadInput("%s is damaged: restore a copy of it, or export the kit again.", name);
        }
    }

    /** The tensors of data by names, with as many rows each; what a step reads, too, is checked as for it. */
    List<Tensor> takeInputs(Map<String, Tensor> data, Collection<String> names) throws BadInput {
        for (String name : names)
            if (!data.containsKey(name)) throw new BadInput("The data lack the input '%s'.", name);
        List<Binding> read = inputs.stream().filter(i -> names.contains(i.name())).collect(Collectors.toList());
        for (Binding input : read) input.check(data.get(input.name()));
        if (read.stream().map(i -> data.get(i.name()).shape()[0]).distinct().count() > 1)
            throw new BadInput("The inputs have different numbers of rows: %s.", read.stream().map(
                i -> "'" + i.name() + "' has " + data.get(i.name()).shape()[0]).collect(Collectors.joining(", ")));
        return names.stream().map(data::get).collect(Collectors.toList());
    }
}
