// The server's API as this page uses it. Turns every failure into words. Knows no DOM.

import { events } from "/page/sse.js";

/** A failure that can be shown as it is. `status` is HTTP's, 0 where there was no answer. */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const UNREACHABLE = "The server cannot be reached. Is it still running?";

/** The model that is served and what runs it: `{model, longest, drafters, version}`. */
export async function about(key) {
  const models = await json("/v1/models", key);
  const version = await json("/version", key);
  const [model] = models.data;
  return { model: model.id, longest: model.max_model_len, drafters: version.drafters, version: version.version };
}

/** Streams one answer; yields the chunks. Aborting `signal` ends it with an `AbortError`. */
export async function* chat(body, key, signal) {
  const response = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...authorization(key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  try {
    for await (const data of events(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure(`The server gave up on this answer: ${chunk.error.message}`);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Failure || error.name === "AbortError") throw error;
    throw new Failure("The connection broke in the middle of the answer.");
  }
  throw new Failure("The connection closed before the answer was complete.");
}

async function json(path, key) {
  return (await ask(path, { headers: authorization(key) })).json();
}

function authorization(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(UNREACHABLE);
  }
  if (!response.ok) throw new Failure(await inWords(response, Boolean(options.headers.authorization)), response.status);
  return response;
}

async function inWords(response, keyGiven) {
  const wait = response.headers.get("retry-after");
  const again = wait ? ` Try again in ${wait} s.` : " Try again later.";
  switch (response.status) {
    case 401: return keyGiven ? "The server does not know this API key." : "This server asks for an API key: see Settings.";
    case 429: return `The server’s queue is full.${again}`;
    case 503: return `The server is shutting down or has too many connections.${again}`;
  }
  try {
    return `The server refused: ${(await response.json()).error.message}`;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}
