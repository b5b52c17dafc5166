import { href, type Look, lookIn, looking, pageBehind, parse, type Route, secretIn } from "./route";

class Router {
  current = $state.raw<Route>(parse(location.hash));

  constructor() {
    addEventListener("hashchange", () => {
      this.current = parse(location.hash);
      scrollTo(0, 0);
    });
  }

  go(route: Route): void {
    location.hash = href(route);
  }

  /** What of the page the address says is looked at. */
  get look(): Look {
    return lookIn(location.hash);
  }

  /** Write what is looked at into the address, so that it can be sent to somebody; no page is left or made for it. */
  show(changes: Readonly<Record<string, string | null>>): void {
    const hash = looking(location.hash, changes);
    if (hash !== location.hash && secretIn(location.hash) === null) {
      history.replaceState(null, "", `${location.pathname}${location.search}${hash}`);
    }
  }

  /** Take what signs in out of the address and out of the history, before anything else happens with it. */
  takeSecret(): ReturnType<typeof secretIn> {
    const secret = secretIn(location.hash);
    if (secret !== null) {
      history.replaceState(null, "", `${location.pathname}${location.search}${href(pageBehind(location.hash))}`);
      this.current = parse(location.hash);
    }
    return secret;
  }
}

export const router = new Router();
