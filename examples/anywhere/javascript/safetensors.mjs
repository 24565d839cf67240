// Files of safetensors.

const DTYPES = {
  F64: ["float64", Float64Array], I64: ["int64", BigInt64Array], U64: ["uint64", BigUint64Array],
  F32: ["float32", Float32Array], I32: ["int32", Int32Array], U32: ["uint32", Uint32Array],
  F16: ["float16", Uint16Array], I16: ["int16", Int16Array], U16: ["uint16", Uint16Array],
  BF16: ["bfloat16", Uint16Array], I8: ["int8", Int8Array], U8: ["uint8", Uint8Array], BOOL: ["bool", Uint8Array],
};

/** What is wrong with a kit, its data or its state, in one sentence; a name in it may be long and hold anything. */
export class KitError extends Error {
  name = "KitError";

  constructor(sentence, options) {
    const text = sentence.length > 960 ? `${sentence.slice(0, 477)} [...] ${sentence.slice(-477)}` : sentence;
    super(text.replace(/\p{C}/gu, (character) => `\\u{${character.codePointAt(0).toString(16)}}`), options);
  }
}

/** A `KitError` with a sentence, unless a condition holds. */
export function ensure(condition, sentence) {
  if (!condition) throw new KitError(sentence);
}

export const isCount = (value) => Number.isSafeInteger(value) && value >= 0;

/** Where the numbers begin. */
export const startOfData = (file) => 8 + Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));

/** The header of a file. */
export const readHeader = (file) => JSON.parse(new TextDecoder().decode(file.subarray(8, startOfData(file))));

/** The tensors of a file by name: { dtype, shape, data }, and the offset of their first bytes in the file. */
export function readTensors(file, fileName = "The file") {
  try {
    const { __metadata__, ...header } = readHeader(file);
    const start = startOfData(file);
    const entries = Object.entries(header).sort(([, a], [, b]) => a.data_offsets[0] - b.data_offsets[0] ||
      a.data_offsets[1] - b.data_offsets[1]);
    let end = 0; // each tensor begins where the former ends: a file of some bytes can hold no gigabytes
    const tensors = entries.map(([name, { dtype, shape, data_offsets: [from, to] }]) => {
      ensure([from, to, ...shape].every(isCount) && from === end && Object.hasOwn(DTYPES, dtype));
      end = to;
      const [type, TypedArray] = DTYPES[dtype];
      // Copied, since a typed array can only begin at a multiple of the size of its numbers.
      const data = new TypedArray(new Uint8Array(file.subarray(start + from, start + to)).buffer);
      ensure(data.length === shape.reduce((a, b) => a * b, 1));
      return [name, { dtype: type, shape, data, offset: start + from }];
    });
    ensure(start + end === file.length);
    return Object.fromEntries(tensors);
  } catch (cause) {
    throw new KitError(`${fileName} is no safetensors file, or a damaged one.`, { cause });
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

/** The bytes of a file with tensors by name: { dtype, shape, data }. */
export function writeTensors(tensors) {
  const header = {};
  let end = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(tensors)) {
    const stored = Object.keys(DTYPES).find((key) => DTYPES[key][0] === dtype);
    ensure(stored, `'${name}' is ${dtype}, of which a safetensors file holds nothing.`);
    header[name] = { dtype: stored, shape, data_offsets: [end, (end += data.byteLength)] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const start = 8 + Math.ceil(text.length / 8) * 8; // numbers begin at a multiple of their size
  const file = new Uint8Array(start + end).fill(32, 0, start); // a header may end with spaces
  new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
  file.set(text, 8);
  const placed = Object.keys(header).map((n) => ({ data: tensors[n].data, offset: start + header[n].data_offsets[0] }));
  return overwrite(file, placed);
}
