// Follows the event stream and shows the page anew when a cohort changed. Without JavaScript the page loads itself again.
(function () {
  "use strict";
  if (!window.EventSource || !window.fetch || !window.DOMParser) return;
  var live = document.getElementById("live"), main = document.getElementById("main");
  var busy = false, again = false, last = 0;
  function show() {
    if (busy) { again = true; return; }
    busy = true; again = false;
    fetch(location.href, { credentials: "same-origin", redirect: "error" }).then(function (r) {
      if (!r.ok) throw new Error(r.status);
      return r.text();
    }).then(function (text) {
      var next = new DOMParser().parseFromString(text, "text/html");
      var from = next.getElementById("main"), asof = next.getElementById("asof");
      // Nothing moves under the hands of somebody who types or selects.
      var at = document.activeElement, typing = at && main.contains(at) && /^(INPUT|SELECT|BUTTON|A)$/.test(at.tagName);
      if (from && !typing && String(window.getSelection()) === "") {
        // What somebody opened stays open.
        var open = Array.from(main.querySelectorAll("details[open][id]")).map(function (d) { return d.id; });
        main.replaceChildren.apply(main, Array.from(from.childNodes));
        open.forEach(function (id) { var d = document.getElementById(id); if (d) d.open = true; });
      }
      if (asof) { var now = document.getElementById("asof"); now.dateTime = asof.dateTime; now.textContent = asof.textContent; }
    }).catch(function () {}).then(function () {
      last = Date.now();
      setTimeout(function () { busy = false; if (again) show(); }, 1000);
    });
  }
  var events = new EventSource("/v1/events");
  events.onopen = function () { live.textContent = " · live"; };
  events.onerror = function () { live.textContent = " · not connected"; };
  events.addEventListener("cohort", show);
  setInterval(function () { if (Date.now() - last > 15000) show(); }, 5000); // ages grow without an event
})();
