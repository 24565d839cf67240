// What the programs for Node have in common.

import { rename, rm, writeFile } from "node:fs/promises";

/** Writes a file so that it is either the former or the new one, even if the process ends in between. */
export async function replaceFile(path, bytes) {
  const temporary = `${path}.${process.pid}.tmp`;
  try {
    await writeFile(temporary, bytes, { flush: true });
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

/** Runs a program, if its arguments are sound; what is wrong is a sentence on stderr, and status 1. */
export async function runProgram(main, values, areSound, usage) {
  try {
    if (!areSound) throw new Error(`Usage: ${usage}`);
    await main(...values);
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  }
}
