// Files of safetensors: data, and the state of a training kit.

const DTYPES = {
  F64: ["float64", Float64Array], I64: ["int64", BigInt64Array], U64: ["uint64", BigUint64Array],
  F32: ["float32", Float32Array], I32: ["int32", Int32Array], U32: ["uint32", Uint32Array],
  F16: ["float16", Uint16Array], I16: ["int16", Int16Array], U16: ["uint16", Uint16Array],
  BF16: ["bfloat16", Uint16Array], I8: ["int8", Int8Array], U8: ["uint8", Uint8Array], BOOL: ["bool", Uint8Array],
};

/** An error with a sentence, unless a condition holds. */
export function ensure(condition, sentence) {
  if (!condition) throw new Error(sentence);
}

const startOfData = (file) => 8 + Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));

const readHeader = (file) => JSON.parse(new TextDecoder().decode(file.subarray(8, startOfData(file))));

/** The tensors of a file by name: { dtype, shape, data }, and the offset of their first bytes in the file. */
export function readTensors(file, fileName = "The file") {
  try {
    const { __metadata__, ...header } = readHeader(file);
    const start = startOfData(file);
    const tensors = Object.entries(header).map(([name, { dtype, shape, data_offsets: [from, to] }]) => {
      const [type, TypedArray] = DTYPES[dtype];
      // Copied, since a typed array can only begin at a multiple of the size of its numbers.
      const data = new TypedArray(new Uint8Array(file.subarray(start + from, start + to)).buffer);
      ensure(data.length === shape.reduce((a, b) => a * b, 1));
      return [name, { dtype: type, shape, data, offset: start + from }];
    });
    return Object.fromEntries(tensors);
  } catch {
    throw new Error(`${fileName} is no safetensors file, or a damaged one.`);
  }
}

/** A copy of a file, with the numbers of tensors at their offsets. */
export function overwrite(file, tensors) {
  const copy = new Uint8Array(file);
  for (const { data, offset } of tensors) {
    copy.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), offset);
  }
  return copy;
}

const CRC = Int32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  return crc;
});

/** The checksum of zlib. */
function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (~crc >>> 0).toString(16).padStart(8, "0");
}

/** Writes the number of steps and the checksum into the header of a state. */
function stamp(file, steps) {
  const header = new TextDecoder("latin1").decode(file.subarray(0, startOfData(file))); // a character for each byte
  const write = (key, text) => file.set(new TextEncoder().encode(text), header.indexOf(`"${key}":"`) + key.length + 4);
  write("steps", String(steps).padStart(12, "0"));
  write("crc32", "00000000");
  write("crc32", crc32(file));
}

/** A state: its file, its tensors by name, and the number of steps that were taken. */
export function readState(bytes, { file: fileName, tensors: expected }) {
  const file = new Uint8Array(bytes); // a copy, to be written to
  let steps, tensors;
  try {
    steps = Number(readHeader(file).__metadata__.steps);
    tensors = readTensors(file);
    stamp(file, steps);
    ensure(file.every((byte, i) => byte === bytes[i]));
  } catch {
    throw new Error(`${fileName} is damaged: restore a copy of it, or export the kit again.`);
  }
  const fits = ({ name, dtype, shape }) => tensors[name]?.dtype === dtype && `${tensors[name].shape}` === `${shape}`;
  ensure(Object.keys(tensors).length === expected.length && expected.every(fits),
    `${fileName} is the state of another kit: its tensors are not those of kit.json.`);
  return { file, tensors, steps };
}

/** The file of a state as it is now. */
export function writeState({ file, tensors, steps }) {
  const written = overwrite(file, Object.values(tensors));
  stamp(written, steps);
  return written;
}
