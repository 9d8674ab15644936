// The chat box: a streamed chat completion, as any client would ask for it.

const element = (id) => document.getElementById(id);
let messages = [];
let model = "";
let running = null;

export function headers() {
  const key = sessionStorage.getItem("longspan-key") || "";
  return key ? { authorization: `Bearer ${key}` } : {};
}

export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

function say(text, kind) {
  const paragraph = document.createElement("p");
  paragraph.className = kind;
  paragraph.textContent = text;
  element("chat").append(paragraph);
  paragraph.scrollIntoView({ block: "nearest" });
  return paragraph;
}

async function send(event) {
  event.preventDefault();
  const text = element("question").value.trim();
  if (!text || running) return;
  element("question").value = "";
  say(text, "you");
  messages.push({ role: "user", content: text });
  running = new AbortController();
  element("stop").disabled = false;
  const answer = say("…", "it");
  let whole = "";
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: JSON.stringify({ model, messages, stream: true, max_tokens: Number(element("most").value) || 128 }),
      signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of eventsOf(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      whole += chunk.choices?.[0]?.delta?.content || "";
      answer.textContent = whole || "…";
    }
    messages.push({ role: "assistant", content: whole });
  } catch (error) {
    if (error.name === "AbortError") {
      messages.push({ role: "assistant", content: whole });
      answer.textContent = `${whole} (stopped)`;
    } else {
      messages.pop();
      answer.remove();
      say(error.message, "problem");
    }
  } finally {
    running = null;
    element("stop").disabled = true;
  }
}

export function askModel(name) {
  model = name;
}

export function startChat() {
  element("ask").addEventListener("submit", send);
  element("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) element("ask").requestSubmit();
    if (event.key === "Enter" && !event.shiftKey) event.preventDefault();
  });
  element("stop").addEventListener("click", () => running?.abort());
  element("clear").addEventListener("click", () => {
    running?.abort();
    messages = [];
    element("chat").replaceChildren();
    element("question").focus();
  });
  element("key").value = sessionStorage.getItem("longspan-key") || "";
  element("key").addEventListener("change", () => {
    sessionStorage.setItem("longspan-key", element("key").value.trim());
    document.dispatchEvent(new Event("longspan-key"));
  });
}
