// What the browser keeps of this page: a few values by key, in IndexedDB, which pages and workers share.

const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("ortpartial-digits", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("values");
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
opened.catch(() => {}); // reported to whoever asks for a value

async function ask(mode, request) {
  try {
    const transaction = (await opened).transaction("values", mode);
    const answer = request(transaction.objectStore("values"));
    return await new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(answer.result);
      transaction.onabort = () => reject(transaction.error);
    });
  } catch (error) {
    throw new Error(`The browser cannot remember this training: ${error.message}`);
  }
}

export const get = (key) => ask("readonly", (values) => values.get(key));
export const put = (key, value) => ask("readwrite", (values) => values.put(value, key));
