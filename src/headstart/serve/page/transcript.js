// The conversation on the page. All text goes in as text nodes: nothing that a model or a person writes becomes markup.

export const STYLES = 6; // of tokens by drafter, in page.css

/** Gives every drafter its style, in the order the server names them, then as they turn up; keeps the legend. */
export class Legend {
  constructor(list) {
    this.list = list;
    this.names = [];
    list.append(this.#item("the model’s own", "own"));
  }

  style(drafter) {
    let place = this.names.indexOf(drafter);
    if (place < 0) {
      place = this.names.push(drafter) - 1;
      this.list.append(this.#item(`drafted by ${drafter}, accepted`, this.#style(place)));
    }
    return this.#style(place);
  }

  #style(place) {
    return `d${place % STYLES}`;
  }

  #item(text, style) {
    const item = document.createElement("li");
    item.append(element("span", `token ${style}`, "token"), ` ${text}`);
    return item;
  }
}

export class Transcript {
  constructor(root, hint, legend) {
    this.root = root;
    this.hint = hint;
    this.legend = legend;
  }

  clear() {
    this.root.replaceChildren(this.hint);
  }

  /** Shows what the user said; returns its element. */
  question(text) {
    this.hint.remove();
    const article = this.#article("user", "You");
    article.append(element("p", "text", text));
    return article;
  }

  /** A place for one answer, or for several side by side: `answer` opens each, `note` says something of them all. */
  turn() {
    const box = element("div", "turn");
    this.root.append(box);
    return {
      answer: (name) => {
        const answer = new Answer(name, this.legend, () => this.#follow());
        box.append(answer.root);
        this.#follow();
        return answer;
      },
      note: (text, kind) => {
        this.root.append(element("p", `verdict ${kind}`, text));
        this.#follow();
      },
      remove: () => box.remove(),
    };
  }

  #article(kind, name) {
    const article = element("article", kind);
    article.append(element("h3", "", name));
    this.root.append(article);
    this.#follow();
    return article;
  }

  #follow() {
    this.root.scrollTop = this.root.scrollHeight;
  }
}

class Answer {
  constructor(name, legend, follow) {
    this.legend = legend;
    this.follow = follow;
    this.text = "";
    this.root = element("article", "model busy");
    this.body = element("p", "text");
    this.foot = element("p", "foot");
    this.root.append(element("h3", "", name), this.body, this.foot);
  }

  /** Appends the tokens of one round. */
  round(round) {
    const { depth, drafted, accepted } = round;
    const what = depth === null ? "From the prompt." : `Depth ${depth}: ${drafted} drafted, ${accepted} accepted.`;
    for (const { text, drafter } of round.pieces) this.#token(text, drafter, what);
    if (round.tail) this.#token(round.tail, null, what);
    this.follow();
  }

  end(foot) {
    this.root.classList.remove("busy");
    this.foot.textContent = foot;
    this.follow();
  }

  #token(text, drafter, what) {
    if (!text) return;
    this.text += text;
    const style = drafter === null ? "own" : this.legend.style(drafter);
    const token = element("span", `token ${style}`, text);
    token.title = drafter === null ? what : `${drafter}. ${what}`;
    this.body.append(token);
  }
}

function element(name, kind = "", text = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.append(text);
  return made;
}
