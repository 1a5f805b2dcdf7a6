// The image viewer: fits an image to the stage, zooms and scrolls it.

const STEPS = [1, 1.5, 2, 3, 4, 6, 8];
const PIXELS_SEEN = 128; // smaller images are shown with sharp pixels

export class Stage {
  // `enlarged` is called when the image is zoomed in and a larger version is useful.
  constructor(stage, image, now, enlarged) {
    Object.assign(this, { stage, image, now, enlarged, zoom: 1 });
    stage.addEventListener("click", (event) => this.set(this.zoom > 1 ? 1 : 2.5, event));
    new ResizeObserver(() => this.lay()).observe(stage);
    image.addEventListener("load", () => this.lay());
  }

  step(way) {
    const at = STEPS.findIndex((step) => step >= this.zoom);
    const next = way > 0 && STEPS[at] > this.zoom ? at : at + way;
    this.set(STEPS[Math.max(0, Math.min(STEPS.length - 1, next))]);
  }

  toggle() {
    this.set(this.zoom > 1 ? 1 : 2.5);
  }

  // `point` is a click event; the zoom is centered on it.
  set(zoom, point) {
    const frame = this.image.getBoundingClientRect();
    const at = { x: 0.5, y: 0.5 };
    if (point?.detail && frame.width) {
      at.x = Math.max(0, Math.min(1, (point.clientX - frame.left) / frame.width));
      at.y = Math.max(0, Math.min(1, (point.clientY - frame.top) / frame.height));
    }
    this.zoom = zoom;
    this.lay();
    if (zoom > 1) this.enlarged();
    this.stage.scrollLeft = at.x * this.stage.scrollWidth - this.stage.clientWidth / 2;
    this.stage.scrollTop = at.y * this.stage.scrollHeight - this.stage.clientHeight / 2;
  }

  lay() {
    const { naturalWidth: width, naturalHeight: height } = this.image;
    this.now.textContent = this.zoom === 1 ? "fit" : `${this.zoom} ×`;
    this.stage.classList.toggle("zoomed", this.zoom > 1);
    if (!width || !this.stage.clientWidth) return;
    const room = { width: this.stage.offsetWidth - 2, height: this.stage.offsetHeight - 2 };
    const scale = Math.min(room.width / width, room.height / height) * this.zoom;
    this.image.style.width = `${Math.floor(width * scale)}px`;
    this.image.style.height = `${Math.floor(height * scale)}px`;
    this.image.classList.toggle("pixels", Math.max(width, height) <= PIXELS_SEEN);
  }
}
