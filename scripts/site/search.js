// The search box: all words must occur in a section; those in its heading count most. The index is loaded on first use.
// The menu is open where it has a column of its own. SPDX-License-Identifier: MIT
(function () {
    "use strict";
    const root = document.currentScript.dataset.root;
    const box = document.getElementById("search"), found = document.getElementById("found");
    const menu = document.querySelector(".menu"), wide = window.matchMedia("(min-width: 900px)");
    const open = () => { menu.open = wide.matches; };
    open();
    wide.addEventListener("change", open);

    let loading = null;
    function load() {
        loading ??= new Promise((ready) => {
            const script = document.createElement("script");
            script.src = root + "/search_index.js";
            script.onload = ready;
            document.head.append(script);
        });
        return loading;
    }
    function score(words, [title, name, , text]) {
        const of = [name.toLowerCase(), title.toLowerCase(), text.toLowerCase()];
        let sum = 0;
        for (const word of words) {
            const here = (of[0].includes(word) ? 10 : 0) + (of[1].includes(word) ? 4 : 0) + (of[2].includes(word) ? 1 : 0);
            if (here === 0) return 0;
            sum += here;
        }
        return sum;
    }
    function excerpt(text, word) {
        const at = Math.max(0, text.toLowerCase().indexOf(word) - 50);
        return (at > 0 ? "... " : "") + text.slice(at, at + 160);
    }
    async function show() {
        const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
        if (words.length === 0) { found.hidden = true; return; }
        await load();
        const best = window.searchIndex.map((entry) => [score(words, entry), entry]).filter(([s]) => s > 0)
            .sort((a, b) => b[0] - a[0]).slice(0, 12);
        found.replaceChildren(...best.map(([, [title, name, address, text]]) => {
            const link = document.createElement("a"), head = document.createElement("b"), body = document.createElement("span");
            link.href = root + "/" + address;
            head.textContent = name === title ? title : title + ": " + name;
            body.textContent = excerpt(text, words[0]);
            link.append(head, body);
            return link;
        }));
        if (best.length === 0) {
            const none = document.createElement("p");
            none.textContent = "No section has all of these words.";
            found.append(none);
        }
        found.hidden = false;
    }
    box.addEventListener("input", show);
    box.addEventListener("focus", load);
    document.addEventListener("keydown", (key) => {
        if (key.key === "Escape") { found.hidden = true; box.blur(); }
        if (key.key === "/" && document.activeElement !== box) { key.preventDefault(); box.focus(); }
        if (key.key === "Enter" && document.activeElement === box) found.querySelector("a")?.click();
    });
    document.addEventListener("click", (click) => { if (!found.contains(click.target) && click.target !== box) found.hidden = true; });
})();
