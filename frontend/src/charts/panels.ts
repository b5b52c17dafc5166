import { bytes, count, figure, type Quantity } from "../format";
import { CHARTS } from "../live/numbers";
import type { RateKey } from "../live/track";
import type { Colour } from "./palette.svelte";

export interface Line {
  key: RateKey;
  label: string;
  colour: Colour;
  dashed: boolean;
}

/** One way to fill a chart. */
export interface Choice {
  id: string;
  label: string;
  lines: readonly Line[];
  /** Multiplies the stored rate into what is shown. */
  scale: number;
  format: (value: number) => Quantity;
  /** The axis reaches at least this far. */
  least: number;
}

export interface Panel {
  id: string;
  title: string;
  about: string;
  choices: readonly [Choice, ...Choice[]];
}

type Format = (typeof CHARTS)[number]["choices"][number]["format"];

/** How the figures of a chart are written. The unit of a plain rate is its line's label. */
const FORMATS: Record<Format, (unit: string) => (value: number) => Quantity> = {
  rate: (unit) => (value) => ({ value: figure(value), unit }),
  bytes: () => bytes,
  "bytes/s": () => (value) => {
    const size = bytes(value);
    return { value: size.value, unit: `${size.unit}/s` };
  },
  depth: () => (value) => ({
    value: value < 9.95 ? value.toFixed(1).replace(/\.0$/, "") : count(Math.round(value)),
    unit: "",
  }),
  "ms/s": () => (value) => ({ value: count(Math.round(value)), unit: "ms/s" }),
};

/** The charts of the loader page, in reading order. */
export const PANELS: readonly Panel[] = CHARTS.map(({ id, title, about, choices }) => ({
  id,
  title,
  about,
  choices: choices.map(({ label, lines, format, least }) => ({
    id: label,
    label,
    lines: lines.map(({ number, label: word, colour, dashed }) => ({ key: number, label: word, colour, dashed })),
    scale: format === "ms/s" ? 1000 : 1,
    format: FORMATS[format](lines[0].label),
    least,
  })) as unknown as readonly [Choice, ...Choice[]],
}));
