import { parse, type Route, href, secretIn } from "./route";

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

  /** Take what signs in out of the address and out of the history, before anything else happens with it. */
  takeSecret(): ReturnType<typeof secretIn> {
    const secret = secretIn(location.hash);
    if (secret !== null) {
      history.replaceState(null, "", `${location.pathname}${location.search}#/`);
      this.current = parse(location.hash);
    }
    return secret;
  }
}

export const router = new Router();
