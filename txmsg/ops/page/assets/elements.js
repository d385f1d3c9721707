// Starts the page: its elements, the two switches, and the connection that bulletins come over.

import { connect } from "./connection.js";
import { startLanguage } from "./language.js";
import { page } from "./page.js";
import { startTheme } from "./theme.js";
import "./live_status.js";
import "./live_value.js";
import "./part_state.js";
import "./ranked_bars.js";
import "./rolling_number.js";
import "./time_line.js";
import "./wall_clock.js";

const release = document.querySelector("meta[name=release]").content;

startLanguage(document.getElementById("language"));
startTheme(document.getElementById("theme"));
connect("/events", (bulletin) => {
  if (bulletin.release !== release) {
    location.reload(); // the server has been upgraded: a wall has nobody who would press F5
    return;
  }
  page.take(bulletin);
});
