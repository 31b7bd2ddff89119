// Search in a folder. Browsers start no worker from a file, so that the worker's script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      const script = this.inside.document.createElement("script")
      this.loaded = new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = () => reject(new Error(`the script of a worker cannot be loaded: ${url}`))
      })
      script.src = url
      this.inside.document.head.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", {data})))
    }

    terminate() {
      this.inside.frameElement?.remove()
    }
  }
}
