import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig({
  // Relative addresses: the page works under any proxy prefix.
  base: "./",
  plugins: [svelte()],
  build: {
    outDir: "../backend/penstock_dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    // Nothing inline: the server's content security policy allows files of its own origin only.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: {
      "/api": "http://127.0.0.1:8787",
      "/ws": { target: "ws://127.0.0.1:8787", ws: true },
    },
  },
  test: { include: ["tests/**/*.test.ts"] },
});
