import "@xyflow/svelte/dist/style.css";
import "uplot/dist/uPlot.min.css";
import "./page.css";
import { mount } from "svelte";
import App from "./App.svelte";

const target = document.getElementById("app");
if (target) mount(App, { target });
