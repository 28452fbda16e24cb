"use strict";
// Loads the page's main part anew from time to time, as long as somebody looks and fills in nothing.
const EVERY_MS = 5000;
const news = () => document.getElementById("news");

function isBusy() {
  const active = document.activeElement;
  return document.hidden || document.querySelector("main input:checked, form.sending") !== null
    || (active !== null && active.matches("main input")) || !getSelection().isCollapsed;
}

async function refresh() {
  if (isBusy()) return;
  let answer;
  try {
    answer = await fetch(location.href, { redirect: "error" });
  } catch {
    news().textContent = "· the dashboard does not answer: was it ended?";
    return;
  }
  if (answer.status === 405) return; // this is what a form was answered
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = page.querySelector("main");
  if (main === null || isBusy()) return;
  await Promise.all([...main.querySelectorAll("img")].map(loaded));
  if (isBusy()) return;
  document.querySelector("main").replaceWith(main);
  news().textContent = `· ${new Date().toLocaleTimeString()}`;
}

// So that nothing jumps while a new picture comes.
function loaded(image) {
  const early = new Image();
  early.src = image.src;
  return early.decode().catch(() => undefined);
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  const question = event.submitter?.dataset.ask;
  if (question !== undefined && !confirm(question)) {
    event.preventDefault();
    return;
  }
  if (form.dataset.long !== undefined) {
    form.classList.add("sending");
    news().textContent = `· ${form.dataset.long}`;
  }
});

setInterval(refresh, EVERY_MS);
