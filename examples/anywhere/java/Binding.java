import com.fasterxml.jackson.databind.JsonNode;
import java.util.*;
import java.util.stream.*;

/** What a step reads; a size in the shape that is a name stands for any number. */
record Binding(String name, String dtype, List<Object> shape, Long low, Long high, Long ignored) {
    /** A tensor as kit.json describes it; a RuntimeException where it does not. */
    static Binding parse(JsonNode json) {
        List<Object> shape = new ArrayList<>();
        for (JsonNode size : (Iterable<JsonNode>) json.required("shape")::elements)
            shape.add(size.isTextual() ? size.asText() : (Object) Kit.whole(size, 0));
        return new Binding(Kit.text(json.required("name")), Kit.text(json.required("dtype")), shape,
            limit(json, "low"), limit(json, "high"), limit(json, "ignored"));
    }

    private static Long limit(JsonNode json, String key) {
        return json.hasNonNull(key) ? Long.valueOf(json.get(key).asLong()) : null;
    }

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
