// A page that is opened as a file may start no worker, which the search needs: here a hidden frame is the worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      this.load([url]).then(() => {
        const messages = this.waiting
        this.waiting = null
        messages.forEach(data => this.postMessage(data))
      })
      this.scope.importScripts = (...urls) => this.load(urls)
    }
    load(urls) {
      return urls.reduce((done, url) => done.then(() => new Promise(resolve => {
        const script = this.scope.document.createElement("script")
        script.src = new URL(url, location.href).href
        script.onload = script.onerror = resolve
        this.scope.document.body.appendChild(script)
      })), Promise.resolve())
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }))
    }
    terminate() {}
  }
}
