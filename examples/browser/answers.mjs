// A list of classes with their shares, and a button for each by which it is taught.

export const part = (id) => document.getElementById(id);
export const percent = (share) => `${(100 * share).toFixed(0)} %`;

/** An action that says in the element with this id why it failed. */
export const attempt = (said, action) => async (...given) => {
  try {
    await action(...given);
  } catch (error) {
    part(said).textContent = error.message;
  }
};

/** A function that shows shares, or none, in a list that it fills; teach is called with the number of a class. */
export function answers(list, buttons, names, teach) {
  for (const [label, name] of names.entries()) {
    const row = document.createElement("li"), text = document.createElement("span"), share = document.createElement("span");
    text.textContent = name;
    row.append(text, document.createElement("meter"), share);
    list.append(row);
    const button = document.createElement("button");
    button.textContent = name;
    button.disabled = true;
    button.addEventListener("click", () => teach(label));
    buttons.append(button);
  }
  return (shares) => {
    const most = shares ? Math.max(...shares) : 0;
    for (const [label, row] of [...list.children].entries()) {
      row.classList.toggle("most", shares !== null && shares[label] === most);
      row.querySelector("meter").value = shares?.[label] ?? 0;
      row.lastElementChild.textContent = shares ? percent(shares[label]) : "";
    }
    for (const button of buttons.children) button.disabled = shares === null;
  };
}
