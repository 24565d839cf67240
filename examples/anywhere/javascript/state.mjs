// The state of a training kit: a file of safetensors with the number of steps and a checksum.

import { KitError, ensure, overwrite, readHeader, readTensors, startOfData } from "./safetensors.mjs";

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
  } catch (cause) {
    throw new KitError(`${fileName} is damaged: restore a copy of it, or export the kit again.`, { cause });
  }
  const fits = ({ name, dtype, shape }) => Object.hasOwn(tensors, name) && tensors[name].dtype === dtype &&
    `${tensors[name].shape}` === `${shape}`;
  ensure(Object.keys(tensors).length === expected.length && expected.every(fits),
    `${fileName} is the state of another kit: its tensors are not those of kit.json.`);
  return { file, tensors, steps };
}

/** Puts what a step has written in place of the numbers that it has read. */
export function replaceTensors(tensors, written, file) {
  const fits = ({ data }, i) => written[i].length === data.length && written[i].constructor === data.constructor;
  ensure(tensors.every(fits), `${file} is damaged: it writes another state than it reads.`);
  tensors.forEach((tensor, i) => { tensor.data = written[i]; });
}

/** The file of a state as it is now. */
export function writeState({ file, tensors, steps }) {
  const written = overwrite(file, Object.values(tensors));
  stamp(written, steps);
  return written;
}
