/** What the tab is called: the page's own words, behind how many alerts hold. */
class Title {
  text = $state("Penstock");
}

export const title = new Title();
