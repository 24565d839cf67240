import ai.onnxruntime.*;
import java.nio.*;
import java.util.stream.*;

/** Numbers of some dtype and shape, in the bytes of a file or in memory that onnxruntime reads. */
record Tensor(Dtype dtype, long[] shape, ByteBuffer bytes) {
    /** The dtypes that onnxruntime has in Java, by their names in safetensors. */
    enum Dtype {
        F32("float32", OnnxJavaType.FLOAT), F64("float64", OnnxJavaType.DOUBLE), F16("float16", OnnxJavaType.FLOAT16),
        BF16("bfloat16", OnnxJavaType.BFLOAT16), I8("int8", OnnxJavaType.INT8), I16("int16", OnnxJavaType.INT16),
        I32("int32", OnnxJavaType.INT32), I64("int64", OnnxJavaType.INT64), U8("uint8", OnnxJavaType.UINT8),
        BOOL("bool", OnnxJavaType.BOOL);

        final String name;
        final OnnxJavaType type;

        Dtype(String name, OnnxJavaType type) {
            this.name = name;
            this.type = type;
        }
    }

    /** The numbers of a tensor of a dtype of whole numbers. */
    LongStream wholeNumbers() {
        return IntStream.range(0, bytes.capacity() / dtype.type.size).mapToLong(i -> switch (dtype) {
            case I64 -> bytes.getLong(8 * i);
            case I32 -> bytes.getInt(4 * i);
            case I16 -> bytes.getShort(2 * i);
            case I8 -> bytes.get(i);
            default -> Byte.toUnsignedInt(bytes.get(i));
        });
    }

    /** Zeros, to be written to. */
    static Tensor allocate(Dtype dtype, long... shape) {
        return new Tensor(dtype, shape, direct((int) LongStream.of(shape).reduce(dtype.type.size, (a, b) -> a * b)));
    }

    /** A tensor like this one, of so many rows, in memory that onnxruntime reads. */
    Tensor allocate(int rows) {
        long[] sizes = shape.clone();
        sizes[0] = rows;
        return new Tensor(dtype, sizes, direct(bytes.capacity() / Math.toIntExact(shape[0]) * rows));
    }

    /** This tensor in memory that onnxruntime reads. */
    Tensor copy() {
        Tensor copy = new Tensor(dtype, shape, direct(bytes.capacity()));
        part(copy.bytes, 0, bytes.capacity()).put(part(bytes, 0, bytes.capacity()));
        return copy;
    }

    /** Writes some of the rows of this tensor into another one. */
    void take(int[] order, int first, Tensor rows) {
        int size = rows.bytes.capacity() / (int) rows.shape[0];
        ByteBuffer batch = part(rows.bytes, 0, rows.bytes.capacity());
        for (int i = 0; i < rows.shape[0]; i++) batch.put(part(bytes, order[first + i] * size, size));
    }

    /** Some of the bytes of a buffer; Android has the methods of Java 13 and 16 only since its versions 14 and 15. */
    static ByteBuffer part(ByteBuffer bytes, int first, int size) {
        ByteBuffer part = bytes.duplicate();
        part.clear();
        part.position(first).limit(first + size);
        return part;
    }

    /** The numbers of an output, which outlive it. */
    static Tensor read(String name, OnnxValue value) throws BadInput {
        for (Dtype dtype : Dtype.values())
            if (value instanceof OnnxTensor output && output.getInfo().type == dtype.type)
                return new Tensor(dtype, output.getInfo().getShape(),
                    output.getByteBuffer().order(ByteOrder.nativeOrder()));
        throw new BadInput("The output '%s' is none that a file of safetensors holds.", name);
    }

    /** A tensor of onnxruntime over the same memory. */
    OnnxTensor share(OrtEnvironment environment) throws OrtException {
        return OnnxTensor.createTensor(environment, bytes, shape, dtype.type);
    }

    private static ByteBuffer direct(int size) {
        return ByteBuffer.allocateDirect(size).order(ByteOrder.nativeOrder());
    }
}
