// The page: reads the settings, asks the server, shows what comes. The parts know nothing of each other.

import { about, chat, Failure } from "/page/client.js";
import { drawDepths, drawPositions, percent } from "/page/charts.js";
import { compare, Tally } from "/page/tally.js";
import { Legend, Transcript } from "/page/transcript.js";

const $ = (id) => document.getElementById(id);
const legend = new Legend($("legend"));
const transcript = new Transcript($("transcript"), $("hint"), legend);
const history = []; // messages so far, as the API takes them
let model = null; // null until the server has said its name
let running = null; // the AbortController of the answer under way
let drawn = null; // the tally on show
let frame = 0;

async function connect() {
  try {
    const found = await about($("key").value);
    model = found.model;
    $("about").textContent = `${found.model} · up to ${found.longest} tokens · headstart ${found.version}`;
    found.drafters.forEach((name) => legend.style(name));
    const routes = found.drafters.length > 1 ? [...found.drafters, found.drafters.join("+")] : found.drafters;
    $("drafter").replaceChildren($("drafter").options[0], ...routes.map((name) => new Option(name, name)));
    problem("");
  } catch (error) {
    $("about").textContent = "Not connected";
    problem(error.message);
    if (error.status === 401) askForKey();
  }
}

function askForKey() {
  $("key-row").hidden = false;
  $("key").focus();
}

async function send() {
  if (running || !$("composer").reportValidity() || !$("settings").reportValidity()) return;
  const text = $("message").value;
  const seed = $("seed").value ? Number($("seed").value) : crypto.getRandomValues(new Uint32Array(1))[0];
  const mode = $("settings").elements.mode.value;
  problem("");
  history.push({ role: "user", content: text });
  const question = transcript.question(text);
  $("message").value = "";
  const turn = transcript.turn();
  const answers = [];
  running = new AbortController();
  busy(true);
  try {
    // speculative first: plain decoding leaves nothing behind that a drafter could learn the answer from
    const kinds = mode === "both" ? ["speculative", "plain"] : [mode];
    for (const kind of kinds) await answer(turn, kind, seed, answers);
    $("status").textContent = "Done.";
    if (mode === "both") turn.note(...verdict(...answers));
  } catch (error) {
    if (error.name === "AbortError") $("status").textContent = "Stopped.";
    else {
      $("status").textContent = "";
      problem(error instanceof Failure ? error.message : `This page failed: ${error.message}`);
      if (error.status === 401) askForKey();
    }
  } finally {
    running = null;
    busy(false);
    const said = answers.find((each) => each.text || each.complete); // an empty answer is one
    if (said) history.push({ role: "assistant", content: said.text });
    else {
      history.pop();
      question.remove();
      turn.remove();
      if (!$("message").value) $("message").value = text;
    }
    if ($("key-row").hidden || $("key").value) $("message").focus();
  }
}

/** One answer; it joins `answers` at once, so that what came before a stop is not lost. */
async function answer(turn, kind, seed, answers) {
  const shown = turn.answer(kind === "plain" ? "Plain" : "Speculative");
  const tally = new Tally(performance.now());
  const result = { tally, complete: false, get text() { return shown.text; } };
  answers.push(result);
  $("status").textContent = `Decoding, ${kind}…`;
  let end = "stopped";
  try {
    for await (const chunk of chat(request(kind, seed), $("key").value, running.signal)) {
      const rounds = chunk.speculation?.rounds ?? [];
      tally.add(rounds, performance.now());
      rounds.forEach((round) => shown.round(round));
      const finish = chunk.choices[0]?.finish_reason;
      if (finish) end = FINISHES[finish] ?? finish;
      if (kind === "speculative" || answers.length === 1) show(tally);
    }
    result.complete = true;
  } catch (error) {
    if (error.name !== "AbortError") end = "failed";
    throw error;
  } finally {
    shown.end(summary(tally, seed, end));
  }
}

const FINISHES = { stop: "ended by itself", length: "reached the most tokens" };

function request(kind, seed) {
  const depth = $("depth").value ? Number($("depth").value) : "auto";
  const speculation = kind === "plain" ? { depth: 0, trace: true } : { depth, trace: true };
  if (kind !== "plain" && $("drafter").value) speculation.drafter = $("drafter").value;
  return {
    ...(model === null ? {} : { model }),
    messages: history,
    temperature: Number($("temperature").value),
    max_completion_tokens: Number($("max-tokens").value),
    seed,
    speculation,
  };
}

function summary(tally, seed, end) {
  return [
    `${tally.tokens} tokens`,
    `${number(tally.speed, 1)} tok/s`,
    `TTFT ${number(tally.ttft, 0)} ms`,
    `mean acceptance length ${number(tally.meanLength, 2)}`,
    `seed ${seed}`,
    end,
  ].join(" · ");
}

function verdict(speculative, plain) {
  const { identical, at, ratio } = compare(speculative, plain);
  const speed = ratio === null
    ? "Too short to compare speeds."
    : `Speculative ran at ${ratio.toFixed(2)} × the speed of plain, in this one run.`;
  if (identical) return [`✓ The two texts are identical (${speculative.text.length} characters). ${speed}`, "good"];
  return [`✗ The two texts differ from character ${at + 1} on. ${speed}`, "bad"];
}

function show(tally) {
  drawn = tally;
  if (!frame) frame = requestAnimationFrame(draw);
}

function draw() {
  frame = 0;
  $("speed").textContent = number(drawn.speed, 1);
  $("ttft").textContent = number(drawn.ttft, 0);
  $("length").textContent = number(drawn.meanLength, 2);
  $("rate").textContent = drawn.rate === null ? "–" : percent(drawn.rate);
  drawPositions($("positions"), $("positions-text"), drawn.byPosition);
  drawDepths($("depths"), $("depths-text"), drawn.rounds);
}

function number(value, digits) {
  return value === null ? "–" : value.toFixed(digits);
}

function busy(on) {
  $("send").disabled = on;
  $("clear").disabled = on;
  $("stop").disabled = !on;
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function stop() {
  running?.abort();
}

function clear() {
  history.length = 0;
  transcript.clear();
  problem("");
  $("status").textContent = "";
  show(new Tally(performance.now()));
  $("message").focus();
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", clear);
$("key").addEventListener("change", connect);

show(new Tally(performance.now()));
connect();
