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
  const ready = () => index ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.onerror = reject;
    script.onload = () => {
      elasticlunr.tokenizer = (text) => wordsOf(text).flatMap(formsOf);
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
        return { paper: byKey.get(key), hits, score: Math.max(...hits.map((hit) => hit.score * (SEARCH[hit.id].url ? 1 : 4))) };
      }).sort((a, b) => b.score - a.score);
  }

  /* A line of a text around the first word it holds. */
  function line(id, words) {
    const { url, where, text } = SEARCH[id];
    const element = document.createElement("p");
    const link = Object.assign(document.createElement("a"), { href: url, textContent: where });
    const starts = words.flatMap(formsOf).map((word) => text.toLowerCase().search(new RegExp(`(?<![\\p{L}\\p{N}])${word}|(?<=[${CJK}])${word}`, "u"))).filter((at) => at >= 0);
    const from = Math.max(0, (starts.length ? Math.min(...starts) : 0) - 50);
    element.className = "line hit";
    element.append(link, ` ${from ? "…" : ""}${text.slice(from, from + 170)}${text.length > from + 170 ? "…" : ""}`);
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
    const words = wordsOf(text.split(/\s+/).filter((word) => !word.startsWith("#")).join(" "));
    const hasTag = (paper, name) => tagsOf(paper).some((t) => tags.includes(name) ? t === name : t.startsWith(name));
    const fits = (paper) => (!status || paper.dataset.status === status) && [...given, tag].filter(Boolean).every((name) => hasTag(paper, name));
    const results = words.length ? (await search(words)).filter(({ paper }) => fits(paper)) : null;
    if (turn !== latest) return; /* another search has begun meanwhile */
    const chosen = results ? results.map(({ paper }) => paper) : papers.filter(fits);
    if (results) {
      const members = copies(chosen);
      members.forEach((member, k) => {
        const hits = results[k].hits.filter(({ id }) => SEARCH[id].url).slice(0, 3);
        member.querySelector("h3").parentElement.append(...hits.map(({ id }) => line(id, words)));
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
    count.textContent = chosen.length === papers.length ? "" : `${chosen.length} of ${papers.length} papers`;
    document.documentElement.dataset.shown = turn;
  }

  bindToAddress(document.querySelector(".filters"), show);
})();
