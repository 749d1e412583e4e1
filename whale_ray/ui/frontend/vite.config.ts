import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the page's Content-Security-Policy allows no inline sources
    modulePreload: { polyfill: false },
    target: "es2023",
  },
});
