// Search on pages that are opened from a folder. Browsers start no worker for file: pages, so the
// worker's script runs in a hidden frame, which exchanges messages as a worker does.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.frame = frame.contentWindow
      const load = source => new Promise((resolve, reject) => {
        const script = this.frame.document.createElement("script")
        script.src = source
        script.onload = resolve
        script.onerror = reject
        this.frame.document.body.appendChild(script)
      })
      this.frame.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.frame.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.ready = load(url)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.frameElement.remove()
    }
  }
}
