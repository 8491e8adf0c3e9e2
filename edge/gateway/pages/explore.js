const MOST_ZEROS = 4096; // elements of an example that is filled in
const LONGEST = 200000; // characters of a reply that are shown

/** Text in which parts between backticks become code. */
const prose = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));

/** A schema in one or a few lines: {id?: string, inputs: InferInput[]}. */
function words(schema, named) {
  if (!schema || !Object.keys(schema).length) return "any";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    named.add(name);
    return name;
  }
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map((one) => words(one, named)).join(" | ");
  if (schema.type === "array") return `(${words(schema.items, named)})[]`.replace(/^\((\w+)\)/, "$1");
  if (schema.type !== "object") return [].concat(schema.type).join(" | ");
  const required = new Set(schema.required);
  const lines = Object.entries(schema.properties || {}).map(([name, one]) => {
    const about = one.description ? `  // ${one.description}` : "";
    return `  ${name}${required.has(name) ? "" : "?"}: ${within(one, named)}${about}`;
  });
  for (const [name, one] of Object.entries(schema.patternProperties || {})) lines.push(`  /${name}/?: ${within(one, named)}`);
  if (schema.additionalProperties) lines.push(`  …: ${words(schema.additionalProperties, named)}`);
  return lines.length ? `{\n${lines.join("\n")}\n}` : "{}";
}

const within = (schema, named) => words(schema, named).replaceAll("\n", "\n  ");

/** The schema and every schema it names, each once. */
function explain(schema, all) {
  const named = new Set();
  const parts = [words(schema, named)];
  for (const name of named) parts.push(`${name} = ${words(all[name], named)}`);
  return parts[0] === [...named][0] ? parts.slice(1).join("\n\n") : parts.join("\n\n");
}

const ZERO = { BOOL: false, BYTES: "" };

/** A request with zeros, with the shapes from a model's metadata. */
function example(metadata) {
  const inputs = metadata.inputs.map(({ name, datatype, shape }) => {
    const sizes = shape.map((size) => (size < 0 ? 1 : size));
    const count = sizes.reduce((a, b) => a * b, 1);
    if (count > MOST_ZEROS) throw new Error(`${name} has ${count} elements: send it as bytes`);
    return { name, datatype, shape: sizes, data: Array(count).fill(ZERO[datatype] ?? 0) };
  });
  const text = JSON.stringify({ inputs }, null, 1);
  return text.replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, list) => `[${list.replace(/\s+/g, " ")}]`);
}

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The curl command for the same request. */
function curl(request) {
  const headers = Object.entries(request.headers).map(([name, value]) => ` -H ${quote(`${name}: ${value}`)}`);
  if (token.get()) headers.push(' -H "Authorization: Bearer $TOKEN"');
  const body = request.file ? ` --data-binary ${quote(`@${request.file.name}`)}` : request.body ? ` -d ${quote(request.body)}` : "";
  const verb = request.method === "POST" && !body ? " -X POST" : "";
  return `curl${verb} ${quote(new URL(request.path.slice(1), new URL(".", location.href)).href)}${headers.join("")}${body}`;
}

async function show(place, request) {
  place.replaceChildren(make("p", { class: "soft" }, "…"));
  const begun = performance.now();
  try {
    const { method, headers, body, file } = request;
    const reply = await ask(request.path, { method, headers, body: file || body || undefined });
    const bytes = new Uint8Array(await reply.arrayBuffer());
    const took = performance.now() - begun;
    const kind = reply.headers.get("Content-Type") || "";
    const json = Number(reply.headers.get("Inference-Header-Content-Length")) || (kind.includes("octet-stream") ? 0 : bytes.length);
    let text = new TextDecoder().decode(bytes.subarray(0, json));
    if (kind.includes("json") || json < bytes.length) {
      try {
        text = JSON.stringify(JSON.parse(text), null, 1).replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, list) => `[${list.replace(/\s+/g, " ")}]`);
      } catch {} // shown as it came
    }
    if (text.length > LONGEST) text = `${text.slice(0, LONGEST)}\n… ${text.length - LONGEST} characters more`;
    if (json < bytes.length) text += `\n… and ${bytes.length - json} bytes`;
    const grade = reply.ok ? "good" : reply.status < 500 ? "fair" : "poor";
    const facts = [`${took.toFixed(1)} ms`, `${bytes.length} bytes`, kind, reply.headers.get("Retry-After") && `try again in ${reply.headers.get("Retry-After")} s`];
    place.replaceChildren(
      make("p", {}, make("span", { class: `status ${grade}` }, `${reply.status} ${reply.statusText}`), make("span", { class: "soft" }, ` · ${facts.filter(Boolean).join(" · ")}`)),
      text ? make("pre", {}, text) : null,
    );
  } catch (error) {
    place.replaceChildren(make("p", { class: "poor" }, `No answer: ${error.message}`));
  }
  place.append(make("pre", { class: "soft" }, curl(request)));
}

function operation(path, method, about, all) {
  const parameters = about.parameters || [];
  const field = ({ name, required, schema, description, in: place }) => {
    const number = schema.type === "integer";
    return make("label", { title: description }, `${name}${required ? "" : " (optional)"}`,
      make("input", { name, "data-place": place, required, list: name === "name" ? "models" : null, inputmode: number ? "numeric" : null, pattern: place === "path" ? schema.pattern : null, autocomplete: "off", spellcheck: "false" }));
  };
  const content = about.requestBody?.content || {};
  const schema = content["application/json"]?.schema;
  const text = schema ? make("textarea", { "aria-label": "body", spellcheck: "false" }) : null;
  if (text) text.value = about.requestBody.required ? '{"inputs": []}' : "{}";
  const file = "application/octet-stream" in content ? make("input", { type: "file", "aria-label": "a file as the only input" }) : null;
  const place = make("div", { class: "reply", "aria-live": "polite" });
  const value = (form, name) => form.elements.namedItem(name)?.value.trim() || "";
  const at = (form) => path.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(value(form, name)));

  const send = (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const headers = {};
    for (const one of parameters) if (one.in === "header" && value(form, one.name)) headers[one.name] = value(form, one.name);
    const chosen = file?.files[0];
    if (chosen) Object.assign(headers, { "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0" });
    else if (text) headers["Content-Type"] = "application/json";
    show(place, { method: method.toUpperCase(), path: at(form), headers, body: chosen ? null : text?.value, file: chosen });
  };
  const fill = async (event) => {
    const form = event.currentTarget.form;
    if (!form.reportValidity()) return;
    const request = { method: "GET", path: at(form).replace(/\/infer$/, ""), headers: {} };
    try {
      const reply = await ask(request.path);
      if (!reply.ok) return show(place, request);
      text.value = example(await reply.json());
    } catch (error) {
      place.replaceChildren(make("p", { class: "poor" }, error.message));
    }
  };
  const replies = Object.entries(about.responses).map(([status, reply]) => {
    const found = reply.$ref ? all.responses[reply.$ref.split("/").pop()] : reply;
    return make("tr", {}, make("td", { class: "mono" }, status), make("td", {}, prose(found.description)));
  });
  const gives = Object.values(about.responses["200"].content || {}).map((one) => one.schema).find(Boolean);
  const form = make("form", { class: "inside", submit: send },
    about.description ? make("p", { class: "soft" }, prose(about.description)) : null,
    parameters.length ? make("div", { class: "fields" }, parameters.map(field)) : null,
    text,
    make("div", { class: "row" }, make("button", { class: "main" }, "Send"),
      file && make("button", { type: "button", click: fill }, "Fill in zeros for this model"),
      file && make("label", { class: "row soft" }, "or send a file as the only input", file)),
    place,
    make("details", { class: "more" }, make("summary", {}, "request and reply formats"),
      schema && make("pre", {}, `request: ${explain(schema, all.schemas)}`),
      gives && make("pre", {}, `reply: ${explain(gives, all.schemas)}`),
      make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, replies)))));
  return make("details", { class: "card", id: about.operationId },
    make("summary", {}, make("span", { class: `method mono ${method}` }, method.toUpperCase()), make("span", { class: "path mono" }, path), make("span", { class: "about" }, about.summary)),
    form);
}

async function models() {
  const list = document.getElementById("models");
  try {
    const reply = await ask("v2/repository/index", { method: "POST" });
    const found = reply.ok ? await reply.json() : [];
    const names = found.sort((a, b) => (b.state === "READY") - (a.state === "READY")).map((one) => one.name);
    list.replaceChildren(...[...new Set(names)].map((name) => make("option", { value: name })));
    for (const field of document.querySelectorAll('input[name="name"]')) if (!field.value && names.length) field.value = names[0];
  } catch {} // names can be typed
}

async function begin() {
  const main = document.querySelector("main");
  const told = await (await ask("openapi.json")).json();
  const grouped = told.tags.map(({ name, description }) => {
    const found = Object.entries(told.paths).flatMap(([path, methods]) =>
      Object.entries(methods).filter(([, about]) => about.tags.includes(name)).map(([method, about]) => operation(path, method, about, told.components)));
    return [make("h2", {}, description), found];
  });
  main.replaceChildren(
    heading(told.info.title, make("span", { class: "soft" }, told.info.version), ["status", "status"], ["openapi.json", "document"]),
    make("p", { class: "soft" }, prose(told.info.description)),
    ...(told.components.securitySchemes ? [tokenForm(models)] : []),
    make("datalist", { id: "models" }), ...grouped.flat(2));
  if (location.hash) document.getElementById(location.hash.slice(1))?.setAttribute("open", "");
  await models();
}

begin().catch((error) => document.querySelector("main").replaceChildren(make("p", { class: "poor" }, `openapi.json: ${error.message}`)));
