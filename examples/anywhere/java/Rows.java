import java.util.stream.IntStream;

/** The rows of a training. */
class Rows {
    /** The rows of an epoch in random order, the same in every language. */
    static int[] drawOrder(int seed, int epoch, int count) {
        int[] rows = IntStream.range(0, count).toArray();
        int s = seed ^ (epoch * 0x85EBCA6B);
        for (int i = count - 1; i > 0; i--) {
            s += 0x9E3779B9;
            int z = (s ^ s >>> 16) * 0x21F0AAAD;
            z = (z ^ z >>> 15) * 0x735A2D97;
            int j = Integer.remainderUnsigned(z ^ z >>> 15, i + 1), row = rows[i];
            rows[i] = rows[j];
            rows[j] = row;
        }
        return rows;
    }
}
