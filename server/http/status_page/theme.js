// Sets the theme that the user's system prefers before anything is painted; page.js lets the user change it.
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
