import { startApp } from "./frame.js";

startApp(document.body);
