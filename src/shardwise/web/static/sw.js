// Keeps the files of this folder for when there is no network. FILES and VERSION are written above by the export.
const PREFIX = "shardwise " + registration.scope + " ", NAME = PREFIX + VERSION;

addEventListener("install", (event) => {
  skipWaiting();
  const asked = FILES.map((name) => new Request(name, { cache: "no-cache" }));
  event.waitUntil(caches.open(NAME).then((kept) => kept.addAll(asked)));
});
addEventListener("activate", (event) => {
  const old = async () => {
    for (const name of await caches.keys()) if (name.startsWith(PREFIX) && name !== NAME) await caches.delete(name);
    await clients.claim();
  };
  event.waitUntil(old());
});
// What is asked of a page stands behind its question mark, which no file knows.
addEventListener("fetch", (event) => {
  const address = new URL(event.request.url);
  address.search = address.hash = "";
  const name = address.href === registration.scope ? "index.html" : address.href.slice(registration.scope.length);
  if (event.request.method !== "GET" || !FILES.includes(name)) return;
  const found = async () => (await (await caches.open(NAME)).match(name)) || fetch(event.request);
  event.respondWith(found());
});
