/* Browsers start no Worker in a page that is opened from a disk, and the search of this site is one.
   There, this runs the script of a worker in a hidden frame, and passes the messages on. */
if (location.protocol === "file:") {
  const started = `
    const postMessage = data => parent.postMessage(data, "*")
    const importScripts = async (...urls) => {
      for (const url of urls) await new Promise((loaded, failed) => {
        const script = document.createElement("script")
        Object.assign(script, { src: url, onload: loaded, onerror: failed })
        document.head.append(script)
      })
    }`
  window.Worker = class extends EventTarget {
    onmessage = null

    constructor(url) {
      super()
      const link = document.createElement("script")
      link.setAttribute("src", new URL(url, document.baseURI).href)
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = `<script>${started}</script>${link.outerHTML}`
      this.loaded = new Promise(done => this.frame.addEventListener("load", done))
      window.addEventListener("message", event => {
        if (event.source !== this.frame.contentWindow) return
        const message = new MessageEvent("message", { data: event.data })
        this.onmessage?.(message)
        this.dispatchEvent(message)
      })
      document.body.append(this.frame)
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.postMessage(data, "*"))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
