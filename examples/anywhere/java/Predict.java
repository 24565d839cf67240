import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.*;
import java.nio.*;
import java.nio.file.*;
import java.util.*;

/** Runs the model of a training kit: java -cp 'lib/*:.' Predict KIT DATA PREDICTIONS [MODEL] */
class Predict {
    public static void main(String[] args) {
        try {
            if (args.length < 3 || args.length > 4) throw new BadInput("Usage: Predict KIT DATA PREDICTIONS [MODEL]");
            Path data = Path.of(args[1]);
            if (!Files.isReadable(data)) throw new BadInput("%s cannot be read.", data);
            try (Model model = Model.open(Path.of(args[0]))) {
                write(Path.of(args[2]), model.predict(TensorFile.readData(data)));
                if (args.length > 3) model.save(Path.of(args[3]));
            }
        } catch (BadInput e) {
            System.err.println(e.getMessage());
            System.exit(1);
        }
    }

    /** Writes tensors to a safetensors file. */
    static void write(Path path, Map<String, Tensor> tensors) throws BadInput {
        ObjectMapper mapper = new ObjectMapper();
        ObjectNode header = mapper.createObjectNode();
        int end = 0;
        for (var entry : tensors.entrySet()) {
            Tensor tensor = entry.getValue();
            header.putPOJO(entry.getKey(), Map.of("dtype", tensor.dtype(), "shape", tensor.shape(), "data_offsets",
                new int[] {end, end += tensor.bytes().capacity()}));
        }
        try {
            byte[] text = mapper.writeValueAsBytes(header);
            int start = 8 + (text.length + 7) / 8 * 8; // numbers begin at a multiple of their size
            ByteBuffer file = ByteBuffer.allocate(start + end).order(ByteOrder.LITTLE_ENDIAN);
            file.putLong(start - 8).put(text);
            while (file.position() < start) file.put((byte) ' '); // a header may end with spaces
            for (Tensor tensor : tensors.values()) file.put(Tensor.part(tensor.bytes(), 0, tensor.bytes().capacity()));
            TensorFile.replace(path, file.array());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
