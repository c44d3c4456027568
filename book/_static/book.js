// The theme makes wide code reachable by Tab when the page loads or changes its size. A solution that unfolds is
// such a change: what was hidden before had no width.
document.addEventListener("click", (event) => {
  if (event.target.closest(".toggle-button, summary")) setTimeout(() => dispatchEvent(new Event("resize")));
});

// What holds for wide code holds for wide pictures.
function reachWidePictures() {
  for (const box of document.querySelectorAll(".attnconv-picture > div")) box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
}
addEventListener("load", reachWidePictures);
addEventListener("resize", reachWidePictures);
