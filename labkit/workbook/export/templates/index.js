/* Searches, filters and groups the papers; without scripts the list stands as written, by family. */
(() => {
  const place = document.getElementById("papers");
  const count = document.querySelector(".found");
  const written = [...place.children];
  const papers = [...place.querySelectorAll(".papers > li")];
  const byKey = new Map(papers.map((paper) => [paper.dataset.key, paper]));
  const tagsOf = (paper) => paper.dataset.tags.split(" ").filter(Boolean);
  const statuses = [...document.querySelector("select[name=status]").options].slice(1).map((o) => o.value);
  const tags = [...new Set(papers.flatMap(tagsOf))].sort();
  if (!papers.length) return;

  /* The texts are read and indexed when the first word is searched for. */
  let index;
  const vocabulary = new Map(); /* each word of the texts, and how often it stands there */
  const ready = () => index ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.onerror = reject;
    script.onload = () => {
      elasticlunr.tokenizer = (text) => {
        const words = [...wordsOf(text), ...compoundsOf(text)];
        for (const word of words) vocabulary.set(word, (vocabulary.get(word) ?? 0) + 1);
        return words.flatMap(formsOf);
      };
      const built = new elasticlunr.Index();
      built.saveDocument(false);
      built.setRef("id");
      ["where", "text"].forEach((field) => built.addField(field));
      SEARCH.forEach((record, id) => built.addDoc({ id, where: record.where, text: record.text }));
      elasticlunr.tokenizer = (word) => [word]; /* what is searched for is cut into words already */
      resolve(built);
    };
    script.src = "assets/search.js";
    document.head.append(script);
  });

  /* A word and its English stem: "schedule" and "scheduling" share one. */
  const formsOf = (word) => [...new Set([word, elasticlunr.stemmer(word)])];

  /* Papers that hold every word, the best first, each with the places where the words stand. */
  async function search(words) {
    const built = await ready();
    const fields = { where: { boost: 3 }, text: { boost: 1 } };
    const totals = words.map((word) => {
      const scores = new Map();
      /* a word by its beginning, its stem as a whole: that of "gas" would find "gamma" */
      for (const form of formsOf(word).reverse()) {
        for (const { ref, score } of built.search(form, { fields, expand: form === word })) scores.set(+ref, score);
      }
      return scores;
    });
    const places = new Map();
    for (const id of new Set(totals.flatMap((scores) => [...scores.keys()]))) {
      const { key } = SEARCH[id];
      if (!places.has(key)) places.set(key, []);
      places.get(key).push({ id, score: totals.reduce((sum, scores) => sum + (scores.get(id) ?? 0), 0), words: totals.map((scores) => scores.has(id)) });
    }
    return [...places].filter(([key, hits]) => byKey.has(key) && words.every((_, k) => hits.some((hit) => hit.words[k])))
      .map(([key, hits]) => {
        hits.sort((a, b) => b.words.filter(Boolean).length - a.words.filter(Boolean).length || b.score - a.score);
        const paper = byKey.get(key);
        return { paper, hits, score: weight(paper, words) * Math.max(...hits.map((hit) => hit.score * (SEARCH[hit.id].url ? 1 : 4))) };
      }).sort((a, b) => b.score - a.score);
  }

  /* A paper's name and title say what it is about; one that was reviewed has more to read. */
  function weight(paper, words) {
    const title = wordsOf(paper.querySelector("h3").textContent);
    const name = joined(paper.dataset.key);
    const named = words.some((word) => name === word) ? 20 : words.every((word) => title.includes(word)) ? 5 : 1;
    return named * (["reviewed", "presented"].includes(paper.dataset.status.toLowerCase()) ? 3 : 1);
  }

  /* What readers type for words that the texts have. */
  const MEANT = {
    "显存": "memory", "内存": "memory", "流水线": "pipeline", "并行": "parallel", "调度": "scheduling", "能耗": "energy",
    "节能": "energy", "功耗": "power", "通信": "communication", "训练": "training", "推理": "inference", "批大小": "batch size",
    "重计算": "recomputation", "张量": "tensor", "集群": "cluster", "优化器": "optimizer", "梯度": "gradients",
    "checkpointing": "recomputation", "vram": "memory", "watt": "power", "latency": "delay",
  };
  const meant = (text) => Object.entries(MEANT).reduce((said, [typed, word]) => said.replaceAll(typed, ` ${word} `), text.toLowerCase());

  /* Whether two words differ by one letter: changed, left out, added, or two that changed places. */
  function oneLetterOff(a, b) {
    if (a.length > b.length) return oneLetterOff(b, a);
    if (b.length - a.length > 1 || a === b) return false;
    let k = 0;
    while (k < a.length && a[k] === b[k]) k++;
    if (b.length > a.length) return a.slice(k) === b.slice(k + 1);
    return a.slice(k + 1) === b.slice(k + 1) || (a[k] === b[k + 1] && a[k + 1] === b[k] && a.slice(k + 2) === b.slice(k + 2));
  }

  /* Words that the texts lack, each as the commonest word that is one letter off and begins alike. */
  function spelt(text) {
    const known = (word) => [...vocabulary.keys()].some((own) => own.startsWith(word));
    const near = (word) => [...vocabulary].filter(([own]) => own[0] === word[0] && oneLetterOff(word, own)).sort((a, b) => b[1] - a[1])[0]?.[0];
    return wordsOf(text).map((word) => word.length < 4 || known(word) ? word : near(word) ?? word).join(" ");
  }

  /* The papers for a text, and the text that found them: as typed, else forgiven a hyphen, another
     word for the same, or a letter. */
  async function forgiving(text) {
    await ready();
    for (const tried of [joined(text), text, meant(text), spelt(meant(text))]) {
      const words = wordsOf(tried);
      const found = words.length ? await search(words) : [];
      if (found.length) return { found, words, tried: tried.trim().replace(/\s+/g, " ") };
    }
    return { found: [], words: wordsOf(text), tried: text };
  }

  /* A text, the words in it marked that begin as those searched for. */
  function marked(text, words) {
    const forms = words.flatMap(formsOf).sort((a, b) => b.length - a.length);
    const pattern = new RegExp(`((?<![\\p{L}\\p{N}])(?:${forms.join("|")})[\\p{L}\\p{N}]*|(?<=[${CJK}])(?:${forms.join("|")}))`, "giu");
    return text.split(pattern).map((part, k) => k % 2 ? Object.assign(document.createElement("mark"), { textContent: part }) : part);
  }

  /* A line of a text around the first word it holds. */
  function line(id, words) {
    const { url, where, text } = SEARCH[id];
    const element = document.createElement("p");
    const link = Object.assign(document.createElement("a"), { href: url, textContent: where });
    const starts = words.flatMap(formsOf).map((word) => text.toLowerCase().search(new RegExp(`(?<![\\p{L}\\p{N}])${word}|(?<=[${CJK}])${word}`, "u"))).filter((at) => at >= 0);
    const from = Math.max(0, (starts.length ? Math.min(...starts) : 0) - 50);
    element.className = "line hit";
    element.append(link, ` ${from ? "…" : ""}`, ...marked(text.slice(from, from + 170), words), text.length > from + 170 ? "…" : "");
    return element;
  }

  function section(name, members) {
    const element = Object.assign(document.createElement("section"), { className: "group" });
    const title = document.createElement("h2");
    const list = Object.assign(document.createElement("ol"), { className: "papers" });
    title.append(`${name} `, Object.assign(document.createElement("small"), { textContent: members.length }));
    list.append(...members);
    element.append(title, list);
    return element;
  }

  const copies = (members) => members.map((paper) => { const copy = paper.cloneNode(true); copy.hidden = false; return copy; });

  function grouped(chosen, group) {
    const names = group === "tag" ? tags : statuses;
    const belongs = (paper, name) => group === "tag" ? tagsOf(paper).includes(name) : paper.dataset.status === name;
    const groups = names.map((name) => [name, chosen.filter((paper) => belongs(paper, name))]);
    if (group === "tag") groups.push(["without a tag", chosen.filter((paper) => !tagsOf(paper).length)]);
    return groups.filter(([, members]) => members.length).map(([name, members]) => section(name, copies(members)));
  }

  let latest = 0;
  async function show({ text, status, tag, group }) {
    const turn = ++latest;
    const given = text.split(/\s+/).filter((word) => /^#./.test(word)).map((word) => word.slice(1).toLowerCase());
    const typed = text.split(/\s+/).filter((word) => !word.startsWith("#")).join(" ").trim();
    const hasTag = (paper, name) => tagsOf(paper).some((t) => tags.includes(name) ? t === name : t.startsWith(name));
    const fits = (paper) => (!status || paper.dataset.status === status) && [...given, tag].filter(Boolean).every((name) => hasTag(paper, name));
    const answer = wordsOf(typed).length ? await forgiving(typed) : null;
    const results = answer?.found.filter(({ paper }) => fits(paper));
    if (turn !== latest) return; /* another search has begun meanwhile */
    const chosen = results ? results.map(({ paper }) => paper) : papers.filter(fits);
    if (results) {
      const members = copies(chosen);
      members.forEach((member, k) => {
        const hits = results[k].hits.filter(({ id }) => SEARCH[id].url).slice(0, 3);
        member.querySelector("h3").parentElement.append(...hits.map(({ id }) => line(id, answer.words)));
      });
      place.replaceChildren(...(members.length ? [section("Best matches first", members)] : []));
    } else if (group === "family") {
      const kept = new Set(chosen);
      papers.forEach((paper) => { paper.hidden = !kept.has(paper); });
      written.forEach((part) => { part.hidden = !part.querySelector("li:not([hidden])"); });
      place.replaceChildren(...written);
    } else {
      place.replaceChildren(...grouped(chosen, group));
    }
    const many = `${chosen.length} of ${papers.length} papers`;
    const sought = "titles, authors, tags, claims and notebooks";
    count.textContent = answer && !chosen.length ? `Nothing found for “${typed}” in ${sought} of ${papers.length} papers.`
      : answer && wordsOf(answer.tried).join() !== wordsOf(joined(typed)).join() && wordsOf(answer.tried).join() !== wordsOf(typed).join() ? `Nothing for “${typed}”; ${many} for “${answer.tried}”`
      : chosen.length === papers.length ? "" : many;
    document.documentElement.dataset.shown = turn;
  }

  bindToAddress(document.querySelector(".filters"), show);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    document.querySelector(".filters input[type=search]").focus();
  });
})();
