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
            ByteBuffer bytes = Tensor.part(file, start + range[0], range[1] - range[0]).slice();
            bytes.order(ByteOrder.LITTLE_ENDIAN);
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

    /** Reads data, in a sentence where they are damaged. */
    static Map<String, Tensor> readData(Path path) throws BadInput {
        try {
            return new TensorFile(path).tensors;
        } catch (IOException | RuntimeException e) {
            throw new BadInput("%s is no safetensors file, or a damaged one.", path.getFileName());
        }
    }

    /** Saves a state; the former file remains until the new one is complete. */
    void save(Path path, long steps) throws BadInput {
        overwrite("steps", String.format(Locale.ROOT, "%012d", steps));
        overwrite("crc32", checksum());
        replace(path, file.array());
    }

    /** Writes a whole file under another name, which then replaces the former one. */
    static void replace(Path path, byte[] bytes) throws BadInput {
        Path temporary = path.resolveSibling(path.getFileName() + "." + System.nanoTime() + ".tmp");
        try {
            try {
                Files.write(temporary, bytes);
                Files.move(temporary, path, StandardCopyOption.REPLACE_EXISTING);
            } finally {
                Files.deleteIfExists(temporary);
            }
        } catch (IOException e) {
            throw new BadInput("%s cannot be written.", path.getFileName());
        }
    }

    /** Writes the digits of a text of the metadata. */
    private void overwrite(String key, String digits) {
        System.arraycopy(digits.getBytes(StandardCharsets.ISO_8859_1), 0, file.array(), find(key), digits.length());
    }

    /** The CRC-32 of the file with zeros in its place. */
    private String checksum() {
        byte[] bytes = file.array().clone();
        Arrays.fill(bytes, find("crc32"), find("crc32") + 8, (byte) '0');
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return String.format(Locale.ROOT, "%08x", crc.getValue());
    }

    /** Where a text of the metadata begins. */
    private int find(String key) {
        return header.indexOf('"' + key + "\":\"") + key.length() + 4;
    }
}
