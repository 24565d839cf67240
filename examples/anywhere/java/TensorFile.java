import com.fasterxml.jackson.databind.*;
import java.io.IOException;
import java.nio.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.stream.LongStream;
import java.util.zip.CRC32;

/** A safetensors file: the size of its header in 8 bytes, the header, which is JSON, and the numbers of its tensors. */
class TensorFile {
    final Map<String, Tensor> tensors = new HashMap<>(); // their bytes are those of the file, for `save` to write
    private final ByteBuffer file;
    private final String header; // with a character for each byte, so that a place in both has the same number

    /** Reads a file; one that is damaged ends in an IOException or a RuntimeException. */
    TensorFile(Path path) throws IOException {
        file = ByteBuffer.wrap(Files.readAllBytes(path)).order(ByteOrder.LITTLE_ENDIAN);
        int start = 8 + Math.toIntExact(file.getLong(0));
        header = new String(file.array(), 0, start, StandardCharsets.ISO_8859_1);
        ObjectMapper mapper = new ObjectMapper();
        for (var field : mapper.readTree(file.array(), 8, start - 8).properties()) {
            if (field.getKey().equals("__metadata__")) continue;
            JsonNode entry = field.getValue();
            Tensor.Dtype dtype = Tensor.Dtype.valueOf(entry.get("dtype").asText());
            long[] shape = mapper.treeToValue(entry.get("shape"), long[].class);
            int[] range = mapper.treeToValue(entry.get("data_offsets"), int[].class);
            ByteBuffer bytes = file.slice(start + range[0], range[1] - range[0]).order(ByteOrder.LITTLE_ENDIAN);
            if (bytes.capacity() != LongStream.of(shape).reduce(dtype.type.size, Math::multiplyExact))
                throw new IOException("The size of " + field.getKey() + " is not that of its shape.");
            tensors.put(field.getKey(), new Tensor(dtype, shape, bytes));
        }
    }

    /** The number of steps that a state has taken. */
    long steps() {
        return Long.parseLong(header, find("steps"), find("steps") + 12, 10);
    }

    /** Whether a state has the checksum that it was saved with. */
    boolean isWhole() {
        return header.startsWith(checksum(), find("crc32"));
    }

    /** Saves a state; the former file remains until the new one is complete. */
    void save(Path path, long steps) throws IOException {
        file.put(find("steps"), String.format(Locale.ROOT, "%012d", steps).getBytes());
        file.put(find("crc32"), checksum().getBytes());
        Path temporary = path.resolveSibling(path.getFileName() + "." + ProcessHandle.current().pid() + ".tmp");
        try {
            Files.write(temporary, file.array());
            Files.move(temporary, path, StandardCopyOption.REPLACE_EXISTING);
        } finally {
            Files.deleteIfExists(temporary);
        }
    }

    /** The CRC-32 of the file with zeros in its place. */
    private String checksum() {
        byte[] bytes = file.array().clone();
        Arrays.fill(bytes, find("crc32"), find("crc32") + 8, (byte) '0');
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return "%08x".formatted(crc.getValue());
    }

    /** Where a text of the metadata begins. */
    private int find(String key) {
        return header.indexOf('"' + key + "\":\"") + key.length() + 4;
    }
}
