/* Words as the search knows them, and a form whose values stand in the page's address. */
const CJK = "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Hangul}";
const RUNS = new RegExp(`[${CJK}]+|(?:(?![${CJK}])[\\p{L}\\p{N}])+`, "gu");
const IS_CJK = new RegExp(`^[${CJK}]`, "u");

/* Words, small; Chinese, Japanese and Korean as pairs of characters, since they have no spaces. */
function wordsOf(text) {
  const runs = String(text ?? "").normalize("NFKC").toLowerCase().match(RUNS) || [];
  return runs.flatMap((run) => IS_CJK.test(run) ? [...run].map((c, k, all) => c + (all[k + 1] ?? "")) : [run]);
}

/* Words with a hyphen, written as one: "all-reduce" is found as "allreduce" too. */
const HYPHENS = /(?<=[\p{L}\p{N}])[-\u2010\u2011](?=[\p{L}\p{N}])/gu;
const COMPOUNDS = /[\p{L}\p{N}]+(?:[-\u2010\u2011][\p{L}\p{N}]+)+/gu;
const joined = (text) => text.replace(HYPHENS, "");
const compoundsOf = (text) => (text.match(COMPOUNDS) ?? []).flatMap((word) => wordsOf(joined(word)));

/* Call `show` with the form's values now and whenever they or the address change. A value in the
   address outlives Back, Forward and a reload; what is typed replaces the entry, a choice adds one. */
function bindToAddress(form, show) {
  const fields = [...form.elements].filter((field) => field.name);
  const values = () => Object.fromEntries(fields.map((field) => [field.name, field.value]));
  const usual = Object.fromEntries(fields.map((field) => [field.name, field.options?.[0].value ?? ""]));
  const restore = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const field of fields) {
      field.value = given.get(field.name) ?? usual[field.name];
      if (field.options && field.selectedIndex < 0) field.value = usual[field.name];
    }
    show(values());
  };
  form.addEventListener("input", ({ target }) => {
    const chosen = Object.entries(values()).filter(([name, value]) => value !== usual[name]);
    const address = `#${new URLSearchParams(chosen)}`;
    history[target.matches("select") ? "pushState" : "replaceState"](null, "", address);
    show(values());
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("popstate", restore);
  addEventListener("pageshow", restore); /* a browser puts its own old texts back after loading */
  form.hidden = false;
  restore();
}
