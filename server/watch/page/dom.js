"use strict";
/** What is in the page is built and changed here. Text only ever goes in as text: no string becomes markup. */
const dom = (() => {
  const SVG_TAGS = new Set(["svg", "use", "path"]);
  const HANDLERS = ["onclick", "onchange", "oninput", "drawn"];
  const STATES = ["checked", "disabled"]; // of an input: what its attributes say is only how it began

  /**
   * Make an element.
   * @param {string} tag
   * @param {Object<string, *>} settings attributes; `style` by property; handlers such as `onclick`, and `drawn`, which is
   *     called whenever the element is in the page and its inside, which is its own, is to be drawn
   * @param {...*} children nodes, texts, numbers, lists of them; null is left out
   */
  function element(tag, settings = {}, ...children) {
    const made = SVG_TAGS.has(tag)
      ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(settings)) set(made, name, value);
    made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return made;
  }

  function set(made, name, value) {
    if (name === "style")
      Object.assign(made.style, value); // as an attribute it would be refused: no inline styles
    else if (HANDLERS.includes(name) || STATES.includes(name)) made[name] = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }

  /** Show these children in a place, keeping every node that can stay: focus, scrolling and selection survive. */
  function show(place, ...children) {
    matchChildren(place, element("div", {}, ...children));
    for (const own of [...place.querySelectorAll("*")].filter((node) => node.drawn)) own.drawn(own);
  }

  function match(live, wanted) {
    if (live.nodeType === Node.TEXT_NODE) {
      if (live.data !== wanted.data) live.data = wanted.data;
      return;
    }
    matchAttributes(live, wanted);
    for (const name of HANDLERS) if (live[name] !== wanted[name]) live[name] = wanted[name];
    for (const name of STATES) if (name in live && live[name] !== wanted[name]) live[name] = wanted[name];
    if (live.style.cssText !== wanted.style.cssText) live.style.cssText = wanted.style.cssText;
    if (!wanted.drawn) matchChildren(live, wanted);
  }

  function matchAttributes(live, wanted) {
    const kept = (name) => name === "style" || name === "open" || wanted.hasAttribute(name); // `open` is the reader's
    for (const { name } of [...live.attributes]) if (!kept(name)) live.removeAttribute(name);
    for (const { name, value } of wanted.attributes) {
      if (name !== "style" && live.getAttribute(name) !== value) live.setAttribute(name, value);
    }
  }

  function matchChildren(live, wanted) {
    const byKey = new Map([...live.children].filter(keyOf).map((child) => [keyOf(child), child]));
    let next = live.firstChild;
    for (const child of [...wanted.childNodes]) {
      const found = keyOf(child) ? byKey.get(keyOf(child)) : next;
      if (!found || !alike(found, child)) live.insertBefore(child, next);
      else {
        if (found === next) next = next.nextSibling;
        else live.insertBefore(found, next);
        match(found, child);
      }
    }
    while (next) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
  }

  function keyOf(node) {
    return node.dataset ? node.dataset.key : undefined;
  }

  function alike(one, other) {
    return one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
  }

  return { element, show };
})();
