// What the browser keeps of this page: a few values by key, in IndexedDB, which pages and workers share.

const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("ortpartial-digits", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("values");
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
opened.catch(() => {}); // reported to whoever asks for a value

async function ask(mode, request) {
  const transaction = (await opened).transaction("values", mode);
  const { result } = await new Promise((resolve, reject) => {
    const asked = request(transaction.objectStore("values"));
    transaction.oncomplete = () => resolve(asked);
    transaction.onabort = () => reject(transaction.error);
  });
  return result;
}

/** What was kept, or undefined; also in a browser that keeps nothing. */
export const get = (key) => ask("readonly", (values) => values.get(key)).catch(() => undefined);

export const put = (key, value) => ask("readwrite", (values) => values.put(value, key)).catch(({ message }) => {
  throw new Error(`This browser keeps nothing of the training when its tab is closed: ${message}`);
});
