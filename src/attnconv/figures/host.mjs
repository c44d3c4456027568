// Runs a figure on a page without a kernel: the part of the anywidget model that figures use, over plain values.

export function mount(root, figure) {
  const state = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const values = { state, value: {} };
  const listeners = new Map();
  const model = {
    get: (name) => values[name],
    set(name, value) {
      values[name] = value;
      for (const listener of listeners.get(`change:${name}`) ?? []) listener();
    },
    on: (event, listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
    off: (event, listener) => listeners.set(event, (listeners.get(event) ?? []).filter((l) => l !== listener)),
    save_changes() {},
  };
  const el = root.querySelector(".attnconv-stage");
  el.replaceChildren();
  figure.render({ model, el });
  root.dataset.ready = "true";
}
