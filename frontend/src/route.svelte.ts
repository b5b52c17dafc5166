import { parse, type Route, href, tokenIn } from "./route";

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

  /** Take the token out of the address and out of the history, before anything else happens with it. */
  takeToken(): string | null {
    const token = tokenIn(location.hash);
    if (token !== null) {
      history.replaceState(null, "", `${location.pathname}${location.search}#/`);
      this.current = parse(location.hash);
    }
    return token;
  }
}

export const router = new Router();
