import java.nio.file.Path;

/** Trains kits in one process, since each takes a while to start: a line for each, its error or "trained". */
class TryKits {
    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < arguments.length; i += 2) {
            Path folder = Path.of(arguments[i]);
            try {
                Train.train(folder, folder.resolve("data.safetensors"), 1, Integer.parseInt(arguments[i + 1]), 0);
                System.out.println("trained");
            } catch (BadInput e) {
                System.out.println(e.getMessage());
            }
        }
    }
}
