/** Elements out of text. What comes from outside is never parsed as HTML: children are nodes or become text. */

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element; `onclick` and the like are listeners, null and false leave an attribute out. */
export const el = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);

/** An SVG element. */
export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Sets a node's text only where it changes, so that a live region speaks once. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A list of terms, `[term, value, note]`, as the rows of a `<dl>`. */
export function facts(rows) {
  return rows.map(([term, value, note]) =>
    el("div", {}, el("dt", {}, term), el("dd", {}, value ?? "unknown", note ? el("small", {}, note) : null)),
  );
}
