import { bytes, count, figure, type Quantity } from "../format";
import type { RateKey } from "../live/track";
import type { Colour } from "./palette.svelte";

export interface Line {
  key: RateKey;
  label: string;
  colour: Colour;
  dashed?: boolean;
}

/** One way to fill a chart. */
export interface Choice {
  id: string;
  label: string;
  lines: readonly Line[];
  /** Multiplies the stored rate into what is shown. */
  scale?: number;
  format: (value: number) => Quantity;
  /** The axis reaches at least this far. */
  least: number;
  /** Which lines are written out beside the title; all if left out. */
  shown?: number;
}

export interface Panel {
  id: string;
  title: string;
  about: string;
  choices: readonly [Choice, ...Choice[]];
}

const perSecond = (unit: string) => (value: number): Quantity => ({ value: figure(value), unit });
const bytesPerSecond = (value: number): Quantity => {
  const size = bytes(value);
  return { value: size.value, unit: `${size.unit}/s` };
};
const depth = (value: number): Quantity => ({ value: value < 9.95 ? value.toFixed(1).replace(/\.0$/, "") : count(Math.round(value)), unit: "" });

/** The six charts of the loader page, in reading order. */
export const PANELS: readonly Panel[] = [
  {
    id: "throughput",
    title: "Throughput",
    about: "what training was given",
    choices: [
      {
        id: "batches",
        label: "batches",
        lines: [{ key: "batches", label: "batches/s", colour: "accent" }],
        format: perSecond("batches/s"),
        least: 1,
      },
      {
        id: "samples",
        label: "samples",
        lines: [{ key: "samples", label: "samples/s", colour: "accent" }],
        format: perSecond("samples/s"),
        least: 1,
      },
      {
        id: "bytes",
        label: "bytes",
        lines: [{ key: "bytes", label: "bytes/s", colour: "accent" }],
        format: bytesPerSecond,
        least: 1000,
      },
    ],
  },
  {
    id: "queues",
    title: "Queue depths",
    about: "batches and tasks that wait",
    choices: [
      {
        id: "queues",
        label: "queues",
        lines: [
          { key: "index", label: "index", colour: "accent" },
          { key: "reorder", label: "reorder", colour: "reorder_stall" },
          { key: "data", label: "data", colour: "pin_wait" },
        ],
        format: depth,
        least: 4,
      },
    ],
  },
  {
    id: "stalls",
    title: "Reorder stalls",
    about: "time training waited for one batch while later ones were finished",
    choices: [
      {
        id: "stalls",
        label: "stalls",
        lines: [{ key: "reorder_stall", label: "ms/s", colour: "reorder_stall" }],
        scale: 1000,
        format: (value) => ({ value: count(Math.round(value)), unit: "ms/s" }),
        least: 100,
      },
    ],
  },
  {
    id: "pin",
    title: "Pin-memory throughput",
    about: "bytes through the pin stage",
    choices: [
      {
        id: "pin",
        label: "pin",
        lines: [{ key: "pin_bytes", label: "bytes/s", colour: "pin_wait" }],
        format: bytesPerSecond,
        least: 1000,
      },
    ],
  },
  {
    id: "busy",
    title: "Workers busy",
    about: "workers with a task in hand, of those alive; why they are; and the processors they share",
    choices: [
      {
        id: "busy",
        label: "busy",
        lines: [
          { key: "busy", label: "busy", colour: "compute" },
          { key: "workers", label: "alive", colour: "dim", dashed: true },
        ],
        format: depth,
        least: 1,
      },
      {
        id: "why",
        label: "why",
        lines: [
          { key: "processor", label: "on a processor", colour: "compute" },
          { key: "queued", label: "waiting for one", colour: "starvation" },
          { key: "blocked", label: "blocked", colour: "pin_wait" },
        ],
        format: depth,
        least: 1,
      },
      {
        id: "processors",
        label: "processors",
        lines: [
          { key: "processor", label: "workers", colour: "compute" },
          { key: "others", label: "others", colour: "starvation" },
          { key: "allowed", label: "to be had", colour: "dim", dashed: true },
        ],
        format: depth,
        least: 1,
      },
    ],
  },
  {
    id: "memory",
    title: "Memory and slots",
    about: "finished batches in the pipeline, shared memory in slots, resident memory of all workers",
    choices: [
      {
        id: "slots",
        label: "slots",
        lines: [
          { key: "finished_bytes", label: "finished", colour: "compute" },
          { key: "slots_bytes", label: "slots", colour: "dim", dashed: true },
        ],
        format: bytes,
        least: 1e6,
      },
      {
        id: "rss",
        label: "worker RSS",
        lines: [{ key: "rss", label: "RSS", colour: "startup" }],
        format: bytes,
        least: 1e6,
      },
    ],
  },
];
