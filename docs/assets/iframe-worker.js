// A browser starts no worker of a page that is a file: the search's runs in a frame of the page then.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (source) => new Promise((done) => {
        const script = inside.document.createElement("script");
        script.src = source;
        script.onload = done;
        inside.document.head.append(script);
      });
      inside.importScripts = async (...sources) => { for (const source of sources) await load(source); };
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
      const loaded = load(url);
      this.postMessage = (data) => loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", {data})));
    }
  };
}
