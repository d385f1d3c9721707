// What this browser remembers of its choices; nothing, where it is told to remember nothing.

export function recall(key, allowed) {
  try {
    const found = localStorage.getItem(`txmsg-page-${key}`);
    return allowed.includes(found) ? found : null;
  } catch {
    return null; // storage is shut
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(`txmsg-page-${key}`, value);
  } catch {
    // storage is shut: the choice lasts as long as the page
  }
}
