/** The colours of styles.css for canvases, which cannot read custom properties themselves. */

const NAMES = [
  "ink",
  "dim",
  "line",
  "card",
  "accent",
  "bad",
  "compute",
  "starvation",
  "reorder_stall",
  "pin_wait",
  "paused",
  "startup",
  "sampler",
  "fetch",
  "collate",
  "send",
] as const;

export type Colour = (typeof NAMES)[number];
export type Theme = "system" | "light" | "dark";

const STORED = "penstock-theme";

class Palette {
  theme = $state<Theme>(stored());
  /** Rises with every change, so that what depends on colours can be drawn anew. */
  version = $state(0);
  #colours = new Map<Colour, string>();

  constructor() {
    this.#apply();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#apply());
  }

  of(name: Colour): string {
    return this.#colours.get(name) ?? "#888";
  }

  /** The same colour, see-through. */
  faded(name: Colour, alpha: number): string {
    return `color-mix(in srgb, ${this.of(name)} ${Math.round(alpha * 100)}%, transparent)`;
  }

  choose(theme: Theme): void {
    this.theme = theme;
    try {
      localStorage.setItem(STORED, theme);
    } catch {
      // Private windows may refuse; the choice then lasts as long as the page.
    }
    this.#apply();
  }

  #apply(): void {
    const root = document.documentElement;
    if (this.theme === "system") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", this.theme);
    // light-dark() is resolved only where it is used, so each colour is used once, on an element of its own.
    const probe = document.createElement("span");
    probe.hidden = true;
    root.append(probe);
    for (const name of NAMES) {
      probe.style.color = `var(--${name.replace("_", "-")})`;
      this.#colours.set(name, getComputedStyle(probe).color);
    }
    probe.remove();
    this.version += 1;
  }
}

function stored(): Theme {
  try {
    const theme = localStorage.getItem(STORED);
    if (theme === "light" || theme === "dark") return theme;
  } catch {
    // As above.
  }
  return "system";
}

export const palette = new Palette();
